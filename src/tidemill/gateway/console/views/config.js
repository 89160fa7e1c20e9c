// A topic's configuration: what is set, where it comes from; change a value, or reset it to what holds without it.

import * as api from "../api.js";
import { field, formDialog } from "../dialog.js";
import { h } from "../dom.js";
import { badge, checkbox, emptyState, searchBox, toast } from "../parts.js";
import { note } from "../router.js";
import { DataTable, loadFrom, searchInto } from "../table.js";

const SOURCES = {
  DYNAMIC_TOPIC_CONFIG: "this topic", DYNAMIC_BROKER_CONFIG: "broker", DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers",
  STATIC_BROKER_CONFIG: "broker's file", DEFAULT_CONFIG: "default",
};

const isSetHere = ({ source, is_default: isDefault }) => (source ? source === "DYNAMIC_TOPIC_CONFIG" : !isDefault);

function editDialog(topic, config) {
  const value = h("input", { type: "text", value: config.value ?? "", autofocus: true, spellcheck: "false", autocomplete: "off" });
  const { closed } = formDialog({
    title: config.name, action: "Save",
    body: [h("p", null, "Takes effect at once on the topic ", h("b", null, topic), "."), field("Value", value)],
    submit: async () => {
      await api.setConfig(topic, config.name, value.value);
      toast(`Set ${config.name} to ${value.value}.`);
    },
  });
  return closed;
}

function resetDialog(topic, config) {
  return formDialog({
    title: `Reset ${config.name}`, action: "Reset",
    body: [h("p", null, "The topic ", h("b", null, topic), " loses its own value ", h("code", null, config.value ?? ""), " and follows the brokers' again.")],
    submit: async () => {
      await api.resetConfig(topic, config.name);
      toast(`Reset ${config.name} to the default.`);
    },
  }).closed;
}

export function configTab({ name, topic, query, signal }) {
  const place = { q: query.get("q") ?? "", changed: query.get("changed") === "true" };
  const remember = () => note(["topics", name, "config"], place);
  const act = (dialog) => async (config) => (await dialog(name, config)) && topic.refresh();
  const [edit, reset] = [act(editDialog), act(resetDialog)];
  const buttons = (config) => {
    if (config.is_read_only) return h("span", { class: "faint" }, "read-only");
    return h("span", { class: "row-actions" }, h("button", { type: "button", onclick: () => edit(config), "aria-label": `Edit ${config.name}` }, "Edit"),
      isSetHere(config) && h("button", { type: "button", onclick: () => reset(config), "aria-label": `Reset ${config.name}` }, "Reset"));
  };
  const table = new DataTable({
    label: `Configuration of ${name}`, noun: "configuration", signal, sort: "name", query: place.q,
    columns: [
      { id: "name", label: "Name", isSortable: true, cell: (row) => h("code", { class: isSetHere(row) ? "strong" : "" }, row.name) },
      { id: "value", label: "Value", isSortable: true, cell: (row) => (row.is_sensitive ? h("span", { class: "faint" }, "hidden") : h("code", { title: row.value }, row.value === "" ? "(empty)" : (row.value ?? "–"))) },
      { id: "source", isMinor: true, label: "Set by", isSortable: true, width: "w-l", cell: (row) => badge(SOURCES[row.source] ?? row.source ?? (row.is_default ? "default" : "set"), isSetHere(row) ? "info" : "plain") },
      { id: "actions", label: "Change", width: "w-xl", cell: buttons },
    ],
    load: loadFrom(() => (topic.info?.configs ?? []).filter((row) => !place.changed || isSetHere(row)), ["name", "value"]),
    open: (row) => !row.is_read_only && edit(row),
    empty: (text) => (text ? emptyState(`No configuration matches “${text}”.`) : place.changed ? emptyState("Nothing is set for this topic: it follows the brokers' defaults.") : emptyState(topic.info?.configs === null ? "This user may not see the configuration." : "No configuration is known yet.")),
  });
  const search = searchBox("Search configuration", place.q, (text) => {
    place.q = text;
    remember();
    table.search(text);
  });
  const changed = checkbox("Set for this topic only", place.changed, (isOn) => {
    place.changed = isOn;
    remember();
    table.reload();
  });
  topic.addEventListener("info", () => table.refresh());
  return h("div", { class: "tab" }, h("div", { class: "toolbar" }, searchInto(search, table), changed), table.element);
}
