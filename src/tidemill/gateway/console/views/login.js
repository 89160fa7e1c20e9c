// The log-in: a user of the cluster, and the password. Then the page begins anew, with a session.

import { logIn } from "../api.js";
import { field } from "../dialog.js";
import { h } from "../dom.js";
import { problem } from "../parts.js";

export function loginView() {
  const name = h("input", { name: "username", autocomplete: "username", autocapitalize: "none", spellcheck: "false", required: true, autofocus: true });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const button = h("button", { type: "submit", class: "primary" }, "Log in");
  const trouble = h("div", { role: "alert" });
  const form = h("form", { class: "login", novalidate: true },
    h("h1", { tabindex: "-1" }, "Log in"),
    h("p", null, "With a user of the cluster. You see and change what this user may."),
    field("User", name), field("Password", password), trouble, button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    button.disabled = true;
    trouble.replaceChildren();
    try {
      await logIn(name.value, password.value);
      location.reload();
    } catch (error) {
      trouble.replaceChildren(problem(error));
      password.value = "";
      password.focus();
    } finally {
      button.disabled = false;
    }
  });
  setTimeout(() => name.focus());
  return form;
}
