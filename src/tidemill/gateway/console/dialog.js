// Dialogs on the browser's own <dialog>, which keeps the focus inside, closes with Escape, and gives the focus back.

import { h, icon } from "./dom.js";
import { problem } from "./parts.js";

let titles = 0;

/**
 * A form in a dialog. `submit` may throw: its message is shown inside and the dialog stays open.
 * Resolves to what `submit` returned, or to null when the dialog was dismissed.
 */
export function formDialog({ title, body, action, submit, isDangerous = false, isWide = false }) {
  const titleId = `dialog-title-${(titles += 1)}`;
  const trouble = h("div", { class: "dialog-trouble", role: "alert" });
  const go = h("button", { type: "submit", class: isDangerous ? "danger" : "primary" }, action);
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = h("form", { method: "dialog", novalidate: true }, h("div", { class: "dialog-body" }, body), trouble,
    h("div", { class: "dialog-foot" }, cancel, go));
  const dialog = h("dialog", { class: isWide ? "wide" : "", "aria-labelledby": titleId }, titleBar(title, titleId, () => dialog.close()), form);
  let result = null;

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (go.disabled) return;
    go.disabled = true;
    trouble.replaceChildren();
    try {
      result = (await submit()) ?? true;
      dialog.close();
    } catch (error) {
      trouble.replaceChildren(problem(error));
    } finally {
      go.disabled = false;
    }
  });
  return { dialog, go, trouble, closed: shown(dialog).then(() => result) };
}

export function infoDialog(title, ...body) {
  const titleId = `dialog-title-${(titles += 1)}`;
  const dialog = h("dialog", { "aria-labelledby": titleId }, titleBar(title, titleId, () => dialog.close()), h("div", { class: "dialog-body" }, body));
  return shown(dialog);
}

function titleBar(title, id, close) {
  return h("div", { class: "dialog-head" }, h("h2", { id }, title),
    h("button", { type: "button", class: "quiet icon-only", "aria-label": "Close", onclick: close }, icon("close")));
}

function shown(dialog) {
  document.body.append(dialog);
  // A press on the backdrop lands on the dialog element itself.
  dialog.addEventListener("pointerdown", (event) => event.target === dialog && dialog.close());
  dialog.showModal();
  (dialog.querySelector("[autofocus], .dialog-body input, .dialog-body textarea, .dialog-body button") ?? dialog).focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve();
    });
  });
}

let fields = 0;

/** A label, its control and a line of explanation. */
export function field(label, control, hint = null) {
  control.id ||= `field-${(fields += 1)}`;
  if (hint) control.setAttribute("aria-describedby", `${control.id}-hint`);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control,
    hint && h("small", { id: `${control.id}-hint` }, hint));
}
