/* The first steps of a virtual machine, before init has anything to listen on, and its last one. */
#pragma once

/* Mounts, loads, switches to the sandbox's root and finds the way to the host: returns a listening socket, or -1 and
 * the path of a device. A step that fails ends the machine: its last words are on the console. */
int boot_machine(const char **device_of_port);

void end_machine(void);
