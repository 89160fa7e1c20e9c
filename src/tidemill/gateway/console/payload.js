// Keys and values of records as the gateway sends them: {kind, data}. Shown as text, whatever they hold.

import { fill, h } from "./dom.js";
import { bytes } from "./format.js";
import { jsonElements, jsonLine, jsonText } from "./json_text.js";

const PREVIEW_CHARACTERS = 300;
const HEX_BYTES = 4096;

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/** Offset, sixteen bytes, and what of them is printable. */
function hexDump(base64) {
  const bytes = bytesOf(base64);
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_BYTES); at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  if (bytes.length > HEX_BYTES) lines.push("…");
  return lines.join("\n");
}

const JSON_BEGINS = /^[ \t\r\n]*[[{]/;
const CONTROL_CHARACTERS = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]/;
// Above this, colours cost more than they tell.
const COLOURED_CHARACTERS = 300_000;
const BASE64_STEP = 32_766;

/** What a person can make of bytes, as the gateway says it of shorter ones. */
export function wholePayload(bytes) {
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    text = null;
  }
  if (text === null || CONTROL_CHARACTERS.test(text)) return { kind: "binary", data: base64Of(bytes) };
  return { kind: isJson(text) ? "json" : "text", data: text };
}

function isJson(text) {
  if (!JSON_BEGINS.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

function base64Of(bytes) {
  let written = "";
  // Steps of a multiple of three bytes need no padding between them.
  for (let at = 0; at < bytes.length; at += BASE64_STEP) written += btoa(String.fromCharCode(...bytes.subarray(at, at + BASE64_STEP)));
  return written;
}

export function textOf({ kind, data }) {
  if (kind === "null") return "null";
  return kind === "json" ? jsonText(data) : String(data ?? "");
}

const isBinary = ({ kind, is_binary: isBinaryCut }) => kind === "binary" || isBinaryCut === true;

/** What stands for the value of a record whose payload is in an object store; null for other records. */
export function claimLine({ claim, value_bytes: size }) {
  if (!claim) return null;
  return h("span", { class: "faint" }, claim.uri === null ? "claim that cannot be resolved" : `claim: ${bytes(size)} in an object store`);
}

/** One line, for a row of a table. */
export function preview(payload) {
  const { kind, data } = payload;
  if (kind === "null") return h("span", { class: "faint" }, "null");
  if (isBinary(payload)) return h("span", { class: "faint" }, `binary ${String(data).slice(0, 60)}`);
  const start = String(data ?? "").slice(0, 2 * PREVIEW_CHARACTERS);
  return h("code", null, (kind === "json" ? jsonLine(start) : start).slice(0, PREVIEW_CHARACTERS));
}

export function block(payload, label) {
  const { kind, data } = payload;
  const box = h("pre", { class: `payload ${isBinary(payload) ? "binary" : kind}`, tabindex: "0", "aria-label": label });
  if (kind === "json") fill(box, data.length > COLOURED_CHARACTERS ? jsonText(data) : jsonElements(data));
  else if (isBinary(payload)) box.textContent = hexDump(data);
  else if (kind === "null") box.textContent = "null";
  else box.textContent = String(data ?? "");
  return box;
}
