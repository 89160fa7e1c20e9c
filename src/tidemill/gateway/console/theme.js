// Dark or light. A classic script, run before the first paint so that the page never flashes in the wrong colours.
// Without a choice the system's preference rules, also when it changes; a choice is remembered in this browser.
(() => {
  const STORE = "tidemill.theme";
  const system = matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    try {
      return localStorage.getItem(STORE);
    } catch {
      return null; // Storage is forbidden in some private windows; the system's preference is enough then.
    }
  }

  function current() {
    return chosen() ?? (system.matches ? "dark" : "light");
  }

  function show() {
    document.documentElement.dataset.theme = current();
    document.dispatchEvent(new CustomEvent("theme", { detail: current() }));
  }

  function toggle() {
    const next = current() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(STORE, next);
    } catch {
      document.documentElement.dataset.theme = next;
      return;
    }
    show();
  }

  system.addEventListener("change", show);
  show();
  globalThis.tidemillTheme = { current, toggle };
})();
