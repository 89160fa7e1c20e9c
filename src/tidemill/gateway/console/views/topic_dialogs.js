// The dialogs that change a topic: create, delete, produce. Changes go through REST v3; what it refuses is shown as it says it.

import * as api from "../api.js";
import { field, formDialog } from "../dialog.js";
import { h, icon } from "../dom.js";
import { count } from "../format.js";
import { toast } from "../parts.js";

const COMMON_CONFIGS = ["cleanup.policy", "compression.type", "delete.retention.ms", "max.message.bytes", "min.insync.replicas", "retention.bytes", "retention.ms", "segment.bytes", "segment.ms"];

function wholeNumber(box, what) {
  const text = box.value.trim();
  if (text === "") return null;
  if (!/^\d+$/.test(text) || Number(text) < 1) throw new Error(`${what} should be a whole number from 1, or empty for the cluster's default.`);
  return Number(text);
}

/** Rows of two inputs that can be added and removed: configurations, headers. */
function pairRows(nameLabel, valueLabel, addLabel, listId = null) {
  const rows = h("div", { class: "pairs" });
  const add = (name = "", value = "") => {
    const row = h("div", { class: "pair" }, h("input", { type: "text", "aria-label": nameLabel, placeholder: nameLabel, value: name, list: listId, spellcheck: "false" }),
      h("input", { type: "text", "aria-label": valueLabel, placeholder: valueLabel, value, spellcheck: "false" }),
      h("button", { type: "button", class: "quiet icon-only", "aria-label": "Remove", onclick: () => row.remove() }, icon("close")));
    rows.append(row);
    return row;
  };
  const more = h("button", { type: "button", class: "quiet", onclick: () => add().querySelector("input").focus() }, icon("plus"), addLabel);
  const read = () => [...rows.children].map((row) => [...row.querySelectorAll("input")].map((box) => box.value)).filter(([name]) => name.trim() !== "");
  return { element: h("div", { class: "field" }, rows, more), read, add };
}

/** Resolves to the new topic's name, or null. */
export function createTopicDialog() {
  const name = h("input", { type: "text", required: true, autofocus: true, spellcheck: "false", autocomplete: "off", placeholder: "orders" });
  const partitions = h("input", { type: "number", min: "1", step: "1", inputmode: "numeric", placeholder: "default" });
  const replication = h("input", { type: "number", min: "1", step: "1", inputmode: "numeric", placeholder: "default" });
  const known = h("datalist", { id: "topic-configs" }, COMMON_CONFIGS.map((config) => h("option", { value: config })));
  const configs = pairRows("Configuration", "Value", "Add a configuration", "topic-configs");
  return formDialog({
    title: "Create topic", action: "Create topic",
    body: [field("Name", name, "Letters, digits, dots, dashes and underscores."),
      h("div", { class: "field-row" }, field("Partitions", partitions), field("Replication factor", replication)), configs.element, known],
    submit: async () => {
      if (name.value.trim() === "") throw new Error("The topic needs a name.");
      await api.createTopic(name.value.trim(), wholeNumber(partitions, "Partitions"), wholeNumber(replication, "The replication factor"),
        configs.read().map(([config, value]) => ({ name: config.trim(), value })));
      toast(`Created the topic ${name.value.trim()}.`);
      return name.value.trim();
    },
  }).closed;
}

/** Deletes after the name was typed, inside `guard`. Resolves to true when it is gone. */
export function deleteTopicDialog(topic, records, guard) {
  const typed = h("input", { type: "text", autofocus: true, spellcheck: "false", autocomplete: "off" });
  const { go, closed } = formDialog({
    title: "Delete topic", action: "Delete topic", isDangerous: true,
    body: [h("p", null, "This deletes ", h("b", null, topic), ` and its ${count(records)} records on every broker. It cannot be undone.`),
      field(`Type ${topic} to confirm`, typed)],
    submit: async () => {
      if (typed.value !== topic) throw new Error(`This is not the topic's name: type ${topic}.`);
      await guard(() => api.deleteTopic(topic));
      toast(`Deleted the topic ${topic}.`);
    },
  });
  go.disabled = true;
  typed.addEventListener("input", () => (go.disabled = typed.value !== topic));
  return closed;
}

function encoded(kind, text, what) {
  if (kind === "null") return null;
  if (kind === "binary") return { type: "BINARY", data: text.trim() };
  if (kind === "json") {
    try {
      JSON.parse(text);
    } catch (error) {
      throw new Error(`The ${what} is not JSON: ${error.message}`);
    }
  }
  // JSON too goes as the text that was typed: parsed here, large numbers would lose digits.
  return { type: "STRING", data: text };
}

function base64(text) {
  return btoa(String.fromCharCode(...new TextEncoder().encode(text)));
}

function kindSelect(label, kinds) {
  return h("select", { "aria-label": label }, kinds.map(([value, text]) => h("option", { value }, text)));
}

/** Resolves to the delivery {partition_id, offset}, or null. */
export function produceDialog(topic, partitionCount) {
  const keyKind = kindSelect("Type of the key", [["string", "Text"], ["json", "JSON"], ["binary", "Base64"], ["null", "No key"]]);
  const valueKind = kindSelect("Type of the value", [["json", "JSON"], ["string", "Text"], ["binary", "Base64"], ["null", "Null (tombstone)"]]);
  const key = h("input", { type: "text", spellcheck: "false", autocomplete: "off", autofocus: true, placeholder: "no key when empty" });
  const value = h("textarea", { rows: "8", spellcheck: "false", placeholder: '{"order_id": 1017, "total": 42.5}' });
  const partition = h("input", { type: "number", min: "0", max: String(partitionCount - 1), step: "1", placeholder: "by key" });
  const headers = pairRows("Header", "Value", "Add a header");
  keyKind.addEventListener("change", () => (key.disabled = keyKind.value === "null"));
  valueKind.addEventListener("change", () => (value.disabled = valueKind.value === "null"));
  const form = formDialog({
    title: `Produce to ${topic}`, action: "Produce", isWide: true,
    body: [h("div", { class: "field-row key-row" }, field("Key", key), field("Key type", keyKind), field("Partition", partition)),
      h("div", { class: "value-head" }, h("span"), valueKind), field("Value", value), headers.element,
      h("p", { class: "hint" }, h("kbd", null, "Ctrl"), " ", h("kbd", null, "Enter"), " produces.")],
    submit: async () => {
      const record = { value: encoded(valueKind.value, value.value, "value") };
      if (keyKind.value !== "null" && key.value !== "") record.key = encoded(keyKind.value, key.value, "key");
      if (partition.value !== "") record.partition_id = Number(partition.value);
      const given = headers.read();
      if (given.length > 0) record.headers = given.map(([name, text]) => ({ name, value: base64(text) }));
      if (record.value === null) delete record.value;
      const delivery = await api.produce(topic, record);
      toast(`Written to partition ${delivery.partition_id} at offset ${count(delivery.offset)}.`);
      return delivery;
    },
  });
  form.dialog.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.dialog.querySelector("form").requestSubmit();
  });
  return form.closed;
}
