/* The first steps of a virtual machine, before init has anything to listen on. */
#pragma once

/* Mounts, loads, switches to the sandbox's root and finds the port to the host. Returns the path of its device.
 * A step that fails ends the machine: its last words are on the console. */
const char *boot_machine(void);
