// The keyboard: single keys and two-key sequences, never while something is being typed or a dialog is open.
// Views bind their own keys for as long as they are shown; the help lists whatever is bound now.

const SEQUENCE_MS = 1200;
const bindings = new Map();
let prefix = null;
let prefixAt = 0;

/** `keys` is what is pressed: "c", "?", or "g t". */
export function bind(keys, label, action, signal = null) {
  const binding = { keys, label, action };
  bindings.set(keys, binding);
  signal?.addEventListener("abort", () => bindings.get(keys) === binding && bindings.delete(keys));
}

export function bound() {
  return [...bindings.values()];
}

function isTyping(target) {
  return target.closest?.("input, textarea, select, [contenteditable]") !== null && !target.matches?.("input[type=checkbox]");
}

export function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    // The space bar presses what has the focus.
    if (event.key === " " && event.target.closest?.("button, input[type=checkbox]")) return;
    if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
    // By the time of the key, not by a timer: a busy page handles keys later than they are pressed.
    const isSequence = prefix !== null && event.timeStamp - prefixAt <= SEQUENCE_MS;
    const binding = bindings.get(isSequence ? `${prefix} ${event.key}` : event.key);
    prefix = null;
    if (binding) {
      event.preventDefault();
      binding.action();
    } else if ([...bindings.keys()].some((known) => known.startsWith(`${event.key} `))) {
      prefix = event.key;
      prefixAt = event.timeStamp;
    }
  });
}
