// The playground: puts its parts together and wires the buttons.

import { listModels } from "/static/api.js";
import { Conversation } from "/static/conversation.js";
import { Inspector } from "/static/inspector.js";
import { KeyAsker } from "/static/key.js";
import { MapView } from "/static/map.js";
import { Settings } from "/static/settings.js";
import { Transcript } from "/static/transcript.js";

const element = (id) => document.getElementById(id);
const prompt = element("prompt");

const inspector = new Inspector();
const settings = new Settings();
const keys = new KeyAsker(showModels);
const transcript = new Transcript(inspector);
const conversation = new Conversation({ transcript, settings, keys, onChange: showState });
const map = new MapView(keys);

function showState() {
  const { isRunning, isEmpty } = conversation;
  element("send").hidden = isRunning;
  element("stop").hidden = !isRunning;
  element("regenerate").disabled = isRunning || isEmpty;
  element("clear").disabled = isEmpty;
}

async function showModels() {
  try {
    const models = await keys.with(listModels);
    settings.showModels(models);
    transcript.notice(models.length ? "" : "No model is served yet. Send to try again.");
  } catch (error) {
    transcript.notice(String(error));
  }
}

async function send() {
  if (!prompt.value.trim() || conversation.isRunning) return;
  if (!settings.hasModel) await showModels();
  if (!settings.hasModel || conversation.isRunning) return;
  if (conversation.send(prompt.value)) prompt.value = "";
}

element("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !element("key-dialog").open) conversation.stop();
});
element("stop").addEventListener("click", () => {
  conversation.stop();
  prompt.focus();
});
element("regenerate").addEventListener("click", () => conversation.regenerate());
element("clear").addEventListener("click", () => {
  conversation.clear();
  inspector.clear();
  prompt.focus();
});

/** The part of the page that the address names; what runs in the other one goes on. */
function showTab() {
  const tab = location.hash === "#map" ? "map" : "playground";
  for (const link of document.querySelectorAll("[data-tab]")) {
    if (link.dataset.tab === tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  element("playground").hidden = tab !== "playground";
  map.isShown = tab === "map";
}
window.addEventListener("hashchange", showTab);

showState();
showTab();
await showModels();
if (!element("key-dialog").open && !location.hash) prompt.focus();
