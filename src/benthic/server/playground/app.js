// Puts the page together: status, chat, settings, metrics, keys.

import { apiKey } from "./api/client.js";
import { Composer } from "./chat/composer.js";
import { Conversation } from "./chat/conversation.js";
import { toCurl } from "./chat/request.js";
import { Transcript } from "./chat/transcript.js";
import { MetricsPage } from "./metrics/page.js";
import { SettingsPanel } from "./settings/panel.js";
import { copyFrom, el, icon, iconButton } from "./shell/dom.js";
import { bindKeys } from "./shell/keys.js";
import { keyDialog } from "./shell/key_dialog.js";
import { STATES, Status } from "./shell/status.js";
import { load, save } from "./shell/store.js";
import { onTheme, toggleTheme } from "./shell/theme.js";

const $ = (id) => document.getElementById(id);
const narrow = matchMedia("(max-width: 60rem)");

const status = new Status();
const panel = new SettingsPanel({ onChange: showChips, onClose: () => showSettings(false) });
const conversation = new Conversation({ settings: () => panel.settings, model: () => status.model?.id });
const composer = new Composer({
  send,
  stop: () => conversation.stop(),
  editLast,
  openSettings: () => showSettings(true),
});
const transcript = new Transcript(conversation, { retry, copyRequest, edit, answerCall, remedy, example });
const metrics = new MetricsPage();
const keys = keyDialog(() => {
  status.forgetModel();
  status.check();
});

const chat = el("section", { class: "chat", "aria-label": "Chat" }, transcript.node, composer.node);
const scrim = el("div", { class: "scrim", hidden: true, onClick: () => showSettings(false) });
const chatPage = el("div", { class: "chat-page" }, chat, scrim, panel.node);
$("main").append(chatPage, metrics.node);

const openHelp = bindKeys([
  { key: "/", label: "Write a message", run: () => toPage("chat", () => composer.focus()) },
  { key: "n", label: "New chat", run: newChat },
  { key: "r", label: "Answer again", run: retryLast },
  { key: "s", label: "Settings", run: () => toPage("chat", () => showSettings(!isPanelOpen())) },
  { key: "c", label: "To the chat", run: () => toPage("chat") },
  { key: "m", label: "To the metrics", run: () => toPage("metrics") },
  { key: "p", label: "Pause the charts", run: () => metrics.togglePause() },
  { key: "d", label: "Dark or light", run: toggleTheme },
]);
addTopTools();

function addTopTools() {
  const theme = iconButton("moon", "Dark or light (d)", toggleTheme);
  onTheme((isDark) => theme.replaceChildren(icon(isDark ? "sun" : "moon")));
  const fresh = el(
    "button",
    { type: "button", class: "soft only-chat", title: "New chat (n)", onClick: newChat },
    icon("plus"),
    el("span", {}, "New chat"),
  );
  const settings = iconButton("sliders", "Settings (s)", () => showSettings(!isPanelOpen()), {
    id: "settings-button",
    "aria-controls": "settings",
    class: "icon-button only-chat",
  });
  const help = iconButton("keyboard", "Keyboard (?)", openHelp, { class: "icon-button only-keyboard" });
  $("top-tools").append(fresh, settings, help, theme);
}

// ---- the conversation ----

function send(text) {
  transcript.toEnd();
  conversation.send(text);
}

function retry(turn) {
  transcript.toEnd();
  conversation.retry(turn);
}

function retryLast() {
  const last = conversation.turns.findLast((turn) => turn.role === "assistant");
  if (last) retry(last);
}

function answerCall(call, text) {
  transcript.toEnd();
  conversation.answerCall(call, text);
  if (!transcript.focusCall()) composer.focus();
}

function edit(turn) {
  composer.text = conversation.take(turn);
  composer.focus();
}

function editLast() {
  const last = conversation.turns.findLast((turn) => turn.role === "user");
  if (last && !conversation.isBusy) edit(last);
}

function newChat() {
  conversation.clear();
  toPage("chat", () => composer.focus());
}

function example({ text, settings, tool }) {
  if (settings) panel.apply(settings);
  if (tool) panel.offer(tool);
  send(text);
}

function copyRequest(button, turn) {
  copyFrom(button, toCurl(conversation.bodyOf(turn), location.origin, apiKey() !== null));
}

function remedy(kind) {
  if (kind === "key") keys.open();
  else if (kind === "settings") showSettings(true);
  else if (kind === "shorten") newChat();
  else retryLast();
}

conversation.addEventListener("busy", showBusy);
conversation.addEventListener("turns", showBusy);

function showBusy() {
  const wasBusy = document.body.classList.contains("is-busy");
  const wantsResults = conversation.openCalls.length > 0;
  composer.setBusy(conversation.isBusy, { wantsResults });
  document.body.classList.toggle("is-busy", conversation.isBusy);
  if (wasBusy && !conversation.isBusy) announceEnd(conversation.turns.at(-1));
  if (!wasBusy && conversation.isBusy) announce("The model is answering");
}

function announceEnd(turn) {
  if (turn?.role !== "assistant") return;
  if (conversation.openCalls.length) {
    announce(
      `The model calls ${conversation.openCalls.map(({ name }) => name).join(" and ")} and waits for the result`,
    );
    if (!narrow.matches) transcript.focusCall();
  } else announce({ done: turn.content || "The answer is empty", stopped: "Stopped", failed: "" }[turn.phase] ?? "");
  if (turn.failure?.remedy === "key") keys.open();
  if (turn.phase === "failed") status.check();
}

function announce(text) {
  $("announcer").textContent = text;
}

// ---- settings ----

function isPanelOpen() {
  return document.body.classList.contains("has-panel");
}

function showSettings(isOpen) {
  document.body.classList.toggle("has-panel", isOpen);
  panel.node.inert = !isOpen;
  scrim.hidden = !(isOpen && narrow.matches);
  $("settings-button").setAttribute("aria-expanded", String(isOpen));
  if (!narrow.matches) save("panel", isOpen);
  if (isOpen && narrow.matches) panel.node.focus();
  else if (!isOpen && panel.node.contains(document.activeElement)) composer.focus();
}

const FORMAT_CHIPS = { json: "JSON", schema: "JSON schema", regex: "Regex" };

function showChips(settings) {
  const tools = settings.tools.filter((tool) => tool.enabled).length;
  const chips = [
    settings.thinking !== "default" && `Thinking ${settings.thinking}`,
    FORMAT_CHIPS[settings.format],
    tools > 0 && (tools === 1 ? "1 tool" : `${tools} tools`),
    settings.system.trim() && "Instructions",
    settings.temperature !== null && `Temperature ${settings.temperature}`,
    settings.seed !== null && `Seed ${settings.seed}`,
  ];
  composer.setChips(chips.filter(Boolean));
}

narrow.addEventListener("change", () => showSettings(!narrow.matches && load("panel", true)));

// ---- pages, status, keys ----

function toPage(name, then = () => {}) {
  if (location.hash !== `#${name}`) history.pushState(null, "", `#${name}`);
  showPage();
  then();
}

function showPage() {
  const isMetrics = location.hash === "#metrics";
  chatPage.hidden = isMetrics;
  metrics.show(isMetrics);
  document.body.classList.toggle("on-metrics", isMetrics);
  document.title = isMetrics ? "Metrics – Benthic" : "Benthic";
  for (const [id, isHere] of [
    ["to-chat", !isMetrics],
    ["to-metrics", isMetrics],
  ]) {
    if (isHere) $(id).setAttribute("aria-current", "page");
    else $(id).removeAttribute("aria-current");
  }
}

function showStatus() {
  const { label, kind, help } = STATES[status.state];
  $("status").dataset.kind = kind;
  $("status-text").textContent = status.state === "ok" ? status.model.id : label;
  $("status").title =
    status.state === "ok"
      ? `${status.model.id}, ready; a context of ${status.model.max_model_len.toLocaleString("en")} tokens`
      : help;
  $("banner").textContent = help;
  $("banner").hidden = !help;
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (narrow.matches && isPanelOpen()) showSettings(false);
  else conversation.stop();
});
window.addEventListener("hashchange", showPage);
window.addEventListener("popstate", showPage);
status.addEventListener("change", showStatus);
status.addEventListener("key", () => keys.open());

showSettings(!narrow.matches && load("panel", true));
showChips(panel.settings);
showBusy();
showPage();
status.start();
metrics.start();
if (!narrow.matches) composer.focus();
