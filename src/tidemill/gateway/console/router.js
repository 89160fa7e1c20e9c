// The place in the console is the URL's hash: #/topics/orders/messages?from=earliest. A reload keeps it, back and
// forward work, and a link can be sent to somebody.

export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, query: new URLSearchParams(search) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // A hash typed by hand with a stray % still names something.
  }
}

export function href(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  const search = new URLSearchParams(given).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

export function go(parts, query) {
  location.hash = href(parts, query);
}

/** Same view, other details: the address follows without a new view. `isStep` makes it a step for the back button. */
export function note(parts, query, isStep = false) {
  const next = href(parts, query);
  if (next === location.hash) return;
  history[isStep ? "pushState" : "replaceState"](null, "", next);
}
