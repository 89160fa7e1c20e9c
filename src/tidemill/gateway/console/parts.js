// Small pieces that several views show: page heads, badges, tiles, empty states, problems, tabs, toasts.

import { h, icon } from "./dom.js";

export function pageHead(title, { trail = [], subtitle = null, actions = [] } = {}) {
  return h("div", { class: "page-head" },
    h("div", { class: "page-title" },
      trail.length > 0 && h("nav", { class: "trail", "aria-label": "Breadcrumb" }, trail.map(([text, to]) => h("a", { href: to }, text))),
      h("h1", { tabindex: "-1" }, title), subtitle && h("div", { class: "subtitle" }, subtitle)),
    h("div", { class: "actions" }, actions));
}

export function card(title, ...content) {
  return h("section", { class: "card" }, title && h("div", { class: "card-head" }, [title].flat().map((part) =>
    typeof part === "string" ? h("h2", null, part) : part)), content);
}

export function badge(text, tone = "plain") {
  return h("span", { class: `badge ${tone}` }, text);
}

const STATE_TONES = {
  ok: "good", stable: "good", under_replicated: "warn", offline: "bad", dead: "bad",
  preparing_rebalance: "warn", completing_rebalance: "warn", assigning: "warn", reconciling: "warn", empty: "plain",
};

/** A state as the cluster calls it ("PreparingRebalance", "under_replicated"), in words and with its colour. */
export function stateBadge(state) {
  const words = String(state ?? "unknown").replace(/([a-z])([A-Z])/g, "$1_$2").toLowerCase().replace(/[\s-]/g, "_");
  return badge(words.replaceAll("_", " ").replace("under replicated", "under-replicated"), STATE_TONES[words] ?? "plain");
}

export function tile(label, { href = null } = {}) {
  const value = h("div", { class: "tile-value" }, "–");
  const note = h("div", { class: "tile-note" });
  const element = h(href ? "a" : "div", { class: "tile", href }, h("div", { class: "tile-label" }, label), value, note);
  return {
    element,
    show(text, { tone = "", detail = "" } = {}) {
      value.replaceChildren(text);
      note.textContent = detail;
      element.dataset.tone = tone;
    },
  };
}

export function emptyState(title, ...body) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), body.map((line) => h("p", null, line)));
}

/** What went wrong, with a way to try again. */
export function problem(error, retry = null) {
  return h("div", { class: "problem" }, icon("error"), h("p", null, error.message ?? String(error)),
    retry && h("button", { type: "button", onclick: retry }, "Try again"));
}

export function segmented(label, choices, current, choose) {
  const buttons = choices.map(([value, text]) => h("button", {
    type: "button", "aria-pressed": String(value === current), data: { value },
    onclick: () => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === String(value)));
      choose(value);
    },
  }, text));
  return h("div", { class: "segmented", role: "group", "aria-label": label }, buttons);
}

export function checkbox(label, isOn, change) {
  const box = h("input", { type: "checkbox", checked: isOn, onchange: () => change(box.checked) });
  return h("label", { class: "check" }, box, label);
}

export function searchBox(label, value, changed) {
  let timer = null;
  const box = h("input", {
    type: "search", class: "search", placeholder: label, "aria-label": label, "aria-keyshortcuts": "/", data: { search: "" },
    value, spellcheck: "false", autocomplete: "off",
    oninput: () => {
      clearTimeout(timer);
      // Not for a view that was left meanwhile.
      timer = setTimeout(() => box.isConnected && changed(box.value.trim()), 120);
    },
  });
  return h("div", { class: "search-box" }, box, h("kbd", { "aria-hidden": "true" }, "/"));
}

const TOAST_MS = 4000;

export function toast(text, tone = "good") {
  const note = h("div", { class: `toast ${tone}` }, icon(tone === "good" ? "ok" : "error"), h("span", null, text));
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), TOAST_MS);
}

export async function copyText(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`Copied the ${what}.`);
  } catch {
    toast(`The browser does not allow copying here: select the ${what} and copy it.`, "bad");
  }
}
