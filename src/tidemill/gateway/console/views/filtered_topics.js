// All views: topics that show the records of another that match a filter. Create, change the filter, delete.

import * as api from "../api.js";
import { field, formDialog } from "../dialog.js";
import { h, icon } from "../dom.js";
import { bytes, count } from "../format.js";
import { bind } from "../keys.js";
import { keepFresh } from "../live.js";
import { emptyState, pageHead, searchBox, toast } from "../parts.js";
import { go, href, note } from "../router.js";
import { DataTable, searchInto } from "../table.js";

const EXAMPLE = "region = 'eu' and not 'test' in tags";
const HINT = "Headers by name, key, tags: = != in starts with exists, with and, or, not.";

function filterBox(value = "") {
  return h("textarea", { rows: "4", spellcheck: "false", placeholder: EXAMPLE, value });
}

async function createDialog(signal) {
  const { items } = await api.topics({ limit: 1000 }, signal).catch(() => ({ items: [] }));
  const known = h("datalist", { id: "view-sources" }, items.map(({ name }) => h("option", { value: name })));
  const name = h("input", { type: "text", autofocus: true, spellcheck: "false", autocomplete: "off", placeholder: "eu-orders" });
  const source = h("input", { type: "text", spellcheck: "false", autocomplete: "off", list: "view-sources", placeholder: "orders" });
  const filter = filterBox();
  return formDialog({
    title: "Create view", action: "Create view",
    body: [field("Name", name, "It is read like a topic."), field("From the topic", source), known, field("Filter", filter, HINT)],
    submit: async () => {
      const view = { name: name.value.trim(), source: source.value.trim(), filter: filter.value.trim() };
      if (view.name === "") throw new Error("The view needs a name.");
      if (view.source === "") throw new Error("Name the topic that the view shows.");
      await api.createView(view);
      toast(`Created the view ${view.name}.`);
    },
  }).closed;
}

function editDialog(view) {
  const filter = filterBox(view.filter);
  filter.autofocus = true;
  return formDialog({
    title: `Filter of ${view.name}`, action: "Save",
    body: [h("p", null, "Holds for what is read from now on. Consumers go on where they are."), field("Filter", filter, HINT)],
    submit: async () => {
      await api.alterView(view.name, filter.value.trim());
      toast(`${view.name} has another filter.`);
    },
  }).closed;
}

function deleteDialog(view) {
  return formDialog({
    title: "Delete view", action: "Delete view", isDangerous: true,
    body: [h("p", null, "This deletes the view ", h("b", null, view.name), ". The records of ", h("b", null, view.source), " stay.")],
    submit: async () => {
      await api.deleteView(view.name);
      toast(`Deleted the view ${view.name}.`);
    },
  }).closed;
}

const share = ({ records_scanned: scanned, records_shown: shown }) => (scanned > 0 ? ` (${Math.round((shown / scanned) * 1000) / 10} %)` : "");

export function filteredTopicsView({ query, signal }) {
  const place = { q: query.get("q") ?? "", sort: query.get("sort") ?? "name" };
  const remember = () => note(["views"], place);
  const act = (dialog) => async (view) => (await dialog(view)) && table.refresh();
  const [edit, remove, create] = [act(editDialog), act(deleteDialog), act(() => createDialog(signal))];
  const buttons = (view) => h("span", { class: "row-actions" },
    h("button", { type: "button", onclick: () => edit(view), "aria-label": `Change the filter of ${view.name}` }, "Filter"),
    h("button", { type: "button", onclick: () => remove(view), "aria-label": `Delete ${view.name}` }, "Delete"));
  const table = new DataTable({
    label: "Views of topics", noun: "view", signal, sort: place.sort, query: place.q,
    columns: [
      { id: "name", label: "View", isSortable: true, cell: (row) => h("a", { href: href(["topics", row.name, "messages"]), title: row.name }, row.name) },
      { id: "source", isMinor: true, label: "From", isSortable: true, cell: (row) => h("a", { href: href(["topics", row.source]), title: row.source }, row.source) },
      { id: "filter", isMinor: true, label: "Filter", cell: (row) => h("code", { title: row.filter }, row.filter) },
      { id: "bytes_scanned", isMinor: true, label: "Scanned", isNumber: true, isSortable: true, width: "w-m", hint: "Bytes of the source that were looked through since the brokers started", cell: (row) => bytes(row.bytes_scanned) },
      { id: "bytes_shown", isMinor: true, label: "Shown", isNumber: true, isSortable: true, width: "w-m", hint: "Bytes that consumers of the view got since the brokers started", cell: (row) => bytes(row.bytes_shown) },
      { id: "records_shown", isMinor: true, label: "Records", isNumber: true, isSortable: true, width: "w-l", hint: "Records that the view showed, and their share of those that it looked through", cell: (row) => `${count(row.records_shown)}${share(row)}` },
      { id: "actions", label: "Change", width: "w-xl", cell: buttons },
    ],
    load: (page) => api.views(page, signal), open: ({ name }) => go(["topics", name, "messages"]),
    changed: ({ sort }) => {
      place.sort = sort;
      remember();
    },
    empty: (text) => (text ? emptyState(`No view matches “${text}”.`)
      : emptyState("No views yet.", "A view shows the records of a topic that match a filter, and is read like a topic.", h("button", { type: "button", class: "primary", onclick: create }, "Create a view"))),
  });
  const search = searchBox("Search views", place.q, (text) => {
    place.q = text;
    remember();
    table.search(text);
  });
  bind("c", "Create a view", create, signal);
  keepFresh(() => table.refresh(), [], signal);
  const button = h("button", { type: "button", class: "primary", onclick: create, "aria-keyshortcuts": "c" }, icon("plus"), "Create view");
  return h("div", { class: "view" }, pageHead("Views", { actions: [button] }), h("div", { class: "toolbar" }, searchInto(search, table)), table.element);
}
