// The delayed messages of a topic that wait for their time: a time line, and a table in which one can be cancelled or given another time.

import * as api from "../api.js";
import { field, formDialog } from "../dialog.js";
import { fill, h } from "../dom.js";
import { ago, clock, count, duration, nearTime, plural, utc } from "../format.js";
import { bind } from "../keys.js";
import { emptyState, problem, toast } from "../parts.js";
import { DataTable, loadFrom } from "../table.js";

// A page of them. It is asked for again by itself only where that is quick, and while no further page is shown.
const LIMIT = 1000;
const AGAIN_MS = 10_000;
const QUICK_MS = 1000;
const BARS = 48;

const place = ({ partition, offset }) => `partition ${partition}, offset ${count(offset)}`;

function text(message) {
  if (message.value === undefined) return `(${count(message.size)} bytes)`;
  if (message.value === null) return "null";
  return typeof message.value === "string" ? message.value : JSON.stringify(message.value);
}

const keyText = ({ key }) => (key === null ? "–" : String(key));

function schedule({ cron, time_zone: zone, schedule_id: id }) {
  return [cron && h("code", null, `${cron} ${zone}`), cron && id && " ", id && h("span", { class: "faint" }, id)];
}

/** When messages are due, as bars between now and the last one shown. The table says the same in words. */
function timeLine(messages, hasMore, now = Date.now()) {
  if (messages.length === 0) return null;
  const total = messages.length;
  const last = Math.max(now + 1000, messages.at(-1).due_ms);
  const bars = Array.from({ length: BARS }, () => 0);
  for (const { due_ms: due } of messages) bars[Math.min(BARS - 1, Math.max(0, Math.floor(((due - now) / (last - now)) * BARS)))] += 1;
  const most = Math.max(...bars);
  const marks = bars.map((number) => {
    const bar = h("span", { class: "time-bar", title: number > 0 ? plural(number, "message") : null });
    bar.style.height = number > 0 ? `${Math.max(8, (number / most) * 100)}%` : "0";
    return bar;
  });
  const middle = now + (last - now) / 2;
  const next = `the next is due ${due(messages[0].due_ms, now)}`;
  const summary = hasMore ? `The first ${plural(total, "message")} of the log that wait, and there are more; of these ${next}` : `${plural(total, "message")} ${total === 1 ? "waits" : "wait"}; ${next}`;
  return h("figure", { class: "time-line card" }, h("figcaption", null, `${summary}.`),
    h("div", { class: "time-bars", role: "img", "aria-label": `Due between now and ${nearTime(last, now)}` }, marks),
    h("div", { class: "time-axis", "aria-hidden": "true" }, h("span", null, "now"), h("span", null, `in ${duration(middle - now)}`), h("span", null, `in ${duration(last - now)}`)));
}

const due = (ms, now = Date.now()) => (ms <= now ? "now" : ago(ms, now));

function cancelDialog(topic, message) {
  return formDialog({
    title: "Cancel message", action: "Cancel message", isDangerous: true,
    body: [h("p", null, "The message with the key ", h("b", null, keyText(message)), ` (${place(message)}) is not delivered then. This cannot be undone.`)],
    submit: async () => {
      await api.cancelDelay(topic, message);
      toast("Cancelled the message.");
    },
  }).closed;
}

function rescheduleDialog(topic, message) {
  const delay = h("input", { type: "text", autofocus: true, spellcheck: "false", autocomplete: "off", placeholder: "2h" });
  return formDialog({
    title: "Another time", action: "Save",
    body: [h("p", null, `Now due ${nearTime(message.due_ms)} (${due(message.due_ms)}). The message with the key `, h("b", null, keyText(message)), " is written anew, and waits at another offset."),
      field("Deliver after", delay, "From now: 30s, 15m, 2h, 1d. 0s delivers it at once."),
      message.cron && h("p", { class: "hint" }, "It is delivered once then, and its schedule ends.")],
    submit: async () => {
      if (delay.value.trim() === "") throw new Error("Say how long it should wait, such as 2h.");
      await api.reschedule(topic, message, { delay: delay.value.trim() });
      toast("The message has another time.");
    },
  }).closed;
}

export function waitingTab({ name, signal }) {
  let found = { messages: [], next: null };
  let timer = null;
  const line = h("div");
  const state = h("span", { class: "faint", role: "status" }, "Looking…");
  const act = (dialog) => async (message) => (await dialog(name, message)) && look();
  const [cancel, move] = [act(cancelDialog), act(rescheduleDialog)];
  const buttons = (message) => h("span", { class: "row-actions" },
    h("button", { type: "button", onclick: () => move(message), "aria-label": `Another time for the message at ${place(message)}` }, "Move"),
    h("button", { type: "button", onclick: () => cancel(message), "aria-label": `Cancel the message at ${place(message)}` }, "Cancel"));
  const table = new DataTable({
    label: `Waiting in ${name}`, noun: "message", signal, sort: "due_ms",
    columns: [
      { id: "due_ms", label: "Due", isSortable: true, width: "w-time", cell: (row) => h("time", { title: utc(row.due_ms) }, nearTime(row.due_ms)) },
      { id: "key", label: "Key", width: "w-key", cell: (row) => h("code", { title: keyText(row) }, keyText(row)) },
      { id: "value", isMinor: true, label: "Message", cell: (row) => h("code", { title: text(row) }, text(row)) },
      { id: "cron", isMinor: true, label: "Schedule", cell: schedule },
      { id: "partition", isMinor: true, label: "Partition", isNumber: true, isSortable: true, width: "w-s", cell: (row) => count(row.partition) },
      { id: "offset", isMinor: true, label: "Offset", isNumber: true, isSortable: true, width: "w-s", cell: (row) => count(row.offset) },
      { id: "actions", label: "Change", width: "w-xl", cell: buttons },
    ],
    load: loadFrom(() => found.messages), open: move,
    empty: () => emptyState("Nothing waits here.", "A message waits when it has a header such as ", h("code", null, "tidemill-delay: 15m"), " or a time in the produce API."),
  });
  const look = async (before = null) => {
    clearTimeout(timer);
    const begun = performance.now();
    try {
      const page = await api.delays(name, LIMIT, before?.next, signal);
      const messages = [...(before?.messages ?? []), ...page.messages].sort((one, other) => one.due_ms - other.due_ms);
      found = { messages, next: page.next };
      state.textContent = `As of ${clock(Date.now())}.`;
      more.hidden = page.next === null;
      fill(line, timeLine(messages, page.next !== null));
      await table.refresh();
    } catch (error) {
      if (error.name === "AbortError") return;
      state.textContent = "";
      fill(line, problem(error, () => look()));
      return;
    }
    if (before === null && performance.now() - begun < QUICK_MS) timer = setTimeout(() => (document.hidden ? null : look()), AGAIN_MS);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  bind("l", "Look again at what waits", () => look(), signal);
  const again = h("button", { type: "button", onclick: () => look(), "aria-keyshortcuts": "l" }, "Look again");
  const more = h("button", { type: "button", hidden: true, onclick: () => look(found) }, "Show more");
  look();
  return h("div", { class: "tab" }, h("div", { class: "toolbar" }, again, more, state), line, table.element);
}
