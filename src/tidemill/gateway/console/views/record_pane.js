// One record, whole: where and when, key, headers, value; each can be copied.

import { h, icon } from "../dom.js";
import { ago, bytes, count, timestamp, utc } from "../format.js";
import { copyText } from "../parts.js";
import { block, preview, textOf } from "../payload.js";

const TYPES = { create_time: "set by the producer", log_append_time: "set by the broker" };

function copyButton(what, text) {
  return h("button", { type: "button", class: "quiet", "aria-label": `Copy the ${what}`, onclick: () => copyText(text, what) }, icon("copy"), "Copy");
}

function part(title, size, what, payload, content) {
  return h("section", null, h("div", { class: "part-head" }, h("h3", null, title), h("span", { class: "faint" }, size), h("span", { class: "spring" }), payload && copyButton(what, textOf(payload))), content);
}

function note(payload) {
  return payload.kind === "cut" ? h("p", { class: "hint" }, "Only the beginning is shown: the record is larger than the console reads.") : null;
}

function headerTable(headers) {
  return h("table", { class: "headers" }, h("caption", { class: "unseen" }, "Headers"), h("tbody", null, headers.map((header) =>
    h("tr", null, h("th", { scope: "row" }, header.name ?? header.key), h("td", null, typeof header.value === "object" && header.value !== null ? preview(header.value) : h("code", null, String(header.value)))))));
}

/** Nothing new for those who live by it. */
function utcLine(ms) {
  return utc(ms).startsWith(timestamp(ms)) ? null : [h("br"), h("span", { class: "faint" }, utc(ms))];
}

export function recordPane(row, close) {
  const headers = row.headers ?? [];
  const kind = TYPES[String(row.timestamp_type).toLowerCase()] ?? "";
  return [
    h("div", { class: "record-head" }, h("h2", null, `Partition ${row.partition}, offset ${count(row.offset)}`),
      h("button", { type: "button", class: "quiet icon-only", "aria-label": "Close the record", onclick: close }, icon("close"))),
    h("p", { class: "record-time" }, h("time", null, timestamp(row.timestamp_ms)), h("span", { class: "faint" }, ` · ${ago(row.timestamp_ms)}${kind ? `, ${kind}` : ""}`), utcLine(row.timestamp_ms)),
    part("Key", row.key.kind === "null" ? "none" : bytes(row.key_bytes), "key", row.key.kind === "null" ? null : row.key, row.key.kind === "null" ? null : block(row.key, "Key")),
    headers.length > 0 && part("Headers", count(headers.length), "headers", null, headerTable(headers)),
    part("Value", `${bytes(row.value_bytes)} · ${row.value.kind}`, "value", row.value, [block(row.value, "Value"), note(row.value)]),
  ];
}
