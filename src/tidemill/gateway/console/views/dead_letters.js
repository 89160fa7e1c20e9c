// The letters of a dead-letter topic: why each was given up, where it came from, and a button that puts it back there, once.

import * as api from "../api.js";
import { formDialog } from "../dialog.js";
import { fill, h } from "../dom.js";
import { clock, count, nearTime, plural, utc } from "../format.js";
import { bind } from "../keys.js";
import { badge, emptyState, problem, toast } from "../parts.js";
import { href } from "../router.js";
import { DataTable, loadFrom } from "../table.js";

// The newest ones. A listing reads the topic, so it is requested when a user looks.
const LIMIT = 1000;

const place = ({ partition, offset }) => `partition ${partition}, offset ${count(offset)}`;
const keyText = ({ key }) => (key === null ? "–" : String(key));
const reasonText = ({ exception, message, reason }) => [exception, message].filter(Boolean).join(": ") || reason;

function origin({ original_topic: topic, original_partition: partition, original_offset: offset }) {
  if (topic === null) return "unknown";
  const where = [partition !== null && `partition ${partition}`, offset !== null && `offset ${count(offset)}`].filter(Boolean).join(", ");
  return [h("a", { href: href(["topics", topic]) }, topic), where && h("span", { class: "faint" }, ` ${where}`)];
}

function outcomeText({ published, replayed_before: before, exhausted, failed, reason }) {
  if (failed > 0) return `${plural(failed, "letter")} stayed here. ${reason}`;
  if (published > 0) return `Replayed ${plural(published, "letter")}.`;
  if (exhausted > 0) return `${plural(exhausted, "letter")} came back too often and stayed here.`;
  return before > 0 ? "It was replayed before." : "There was nothing to replay.";
}

function replayDialog(topic, letter) {
  const what = letter === null ? "Every letter that was not replayed yet goes back to where it came from."
    : ["The letter with the key ", h("b", null, keyText(letter)), ` (${place(letter)}) goes back to `, h("b", null, letter.original_topic ?? "an unknown topic"), "."];
  return formDialog({
    title: letter === null ? "Replay all letters" : "Replay letter", action: letter === null ? "Replay all" : "Replay",
    body: [h("p", null, what), h("p", { class: "hint" }, "A letter is put back once, however often this is done. Consumers of that topic get the record again.")],
    submit: async () => toast(outcomeText(await api.replayDeadLetters(topic, letter))),
  }).closed;
}

export function deadLettersTab({ name, signal }) {
  let letters = [];
  const trouble = h("div", { class: "trouble" });
  const state = h("span", { class: "faint", role: "status" }, "Looking…");
  const replay = async (letter) => (await replayDialog(name, letter)) && look();
  const button = (letter) => (letter.is_replayed ? badge("replayed", "good")
    : h("button", { type: "button", onclick: () => replay(letter), "aria-label": `Replay the letter at ${place(letter)}` }, "Replay"));
  const table = new DataTable({
    label: `Dead letters of ${name}`, noun: "letter", signal, sort: "-timestamp_ms",
    columns: [
      { id: "timestamp_ms", isMinor: true, label: "Time", isSortable: true, width: "w-time", cell: (row) => h("time", { title: utc(row.timestamp_ms) }, nearTime(row.timestamp_ms)) },
      { id: "key", label: "Key", width: "w-key", cell: (row) => h("code", { title: keyText(row) }, keyText(row)) },
      { id: "reason", label: "Reason", isSortable: true, cell: (row) => h("span", { title: reasonText(row) }, reasonText(row)) },
      { id: "original_topic", isMinor: true, label: "From", isSortable: true, cell: origin },
      { id: "group", isMinor: true, label: "Group", isSortable: true, width: "w-l", cell: (row) => row.group ?? "–" },
      { id: "attempts", isMinor: true, label: "Deliveries", isNumber: true, isSortable: true, width: "w-s", hint: "How often it was delivered before it was given up", cell: (row) => count(row.attempts) },
      { id: "is_replayed", label: "Replay", isSortable: true, width: "w-m", cell: button },
    ],
    load: loadFrom(() => letters),
    empty: () => emptyState("There are no letters here.", "A share group with ", h("code", null, "errors.deadletterqueue.topic.name"), " writes what it gives up; so do Spring, Kafka Connect and Kafka Streams."),
  });
  const look = async () => {
    try {
      letters = (await api.deadLetters(name, LIMIT, signal)).letters;
      const waiting = letters.filter((letter) => !letter.is_replayed).length;
      state.textContent = `${plural(waiting, "letter")} not replayed, as of ${clock(Date.now())}.`;
      fill(trouble);
      await table.refresh();
    } catch (error) {
      if (error.name === "AbortError") return;
      state.textContent = "";
      fill(trouble, problem(error, look));
    }
  };
  bind("l", "Look again at the letters", look, signal);
  look();
  return h("div", { class: "tab" }, h("div", { class: "toolbar" },
    h("button", { type: "button", onclick: look, "aria-keyshortcuts": "l" }, "Look again"),
    h("button", { type: "button", onclick: () => replay(null) }, "Replay all…"), state), trouble, table.element);
}
