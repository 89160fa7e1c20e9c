// The console's frame: navigation, theme, keys, the state of the connection, and one view at a time.
//
// A view is a function (place) -> element. place: parts and query of the address, `signal` that is aborted when the view
// is left; everything a view starts (requests, listeners, timers) hangs on that signal.

import { leaveIfOver, loadSession, logOut, session } from "./api.js";
import { fill, h, icon } from "./dom.js";
import { infoDialog } from "./dialog.js";
import { count } from "./format.js";
import { bind, bound, listen } from "./keys.js";
import { live } from "./live.js";
import { emptyState, problem } from "./parts.js";
import { go, href, parse } from "./router.js";
import { brokersView } from "./views/brokers.js";
import { filteredTopicsView } from "./views/filtered_topics.js";
import { groupView } from "./views/group.js";
import { groupsView } from "./views/groups.js";
import { loginView } from "./views/login.js";
import { overviewView } from "./views/overview.js";
import { rebalancesView } from "./views/rebalances.js";
import { topicView } from "./views/topic.js";
import { topicsView } from "./views/topics.js";

const PLACES = [
  { id: "overview", label: "Overview", keys: "g o", view: overviewView },
  { id: "brokers", label: "Brokers", keys: "g b", view: brokersView, total: "brokers" },
  { id: "topics", label: "Topics", keys: "g t", view: topicsView, inner: topicView, total: "topics" },
  { id: "views", label: "Views", keys: "g v", view: filteredTopicsView },
  { id: "groups", label: "Groups", keys: "g g", view: groupsView, inner: groupView, total: "groups" },
  { id: "rebalances", label: "Rebalances", keys: "g r", view: rebalancesView },
];

const main = document.getElementById("main");
const totals = new Map();
let leaving = new AbortController();
let shownPath = null;

function buildNavigation() {
  fill(document.getElementById("nav"), PLACES.map((place) => {
    const number = h("span", { class: "nav-count" });
    if (place.total) totals.set(place.total, number);
    return h("a", { href: href([place.id]), data: { place: place.id }, title: `${place.label} (${place.keys})` }, icon(place.id), h("span", null, place.label), number);
  }));
}

function render() {
  if (location.hash === "#main") return; // The skip link.
  const { parts, query } = parse(location.hash);
  const [id = "overview", ...rest] = parts;
  const place = PLACES.find((known) => known.id === id);
  leaving.abort();
  leaving = new AbortController();
  const viewOf = rest.length > 0 ? place?.inner : place?.view;
  const element = viewOf ? shown(viewOf, { parts, query, signal: leaving.signal }) : lostPlace();
  fill(main, element);
  markCurrent(place, parts);
}

function shown(viewOf, place) {
  try {
    return viewOf(place);
  } catch (error) {
    console.error(error);
    return problem(error, render);
  }
}

function lostPlace() {
  return emptyState("There is nothing at this address.", h("a", { href: href(["overview"]) }, "Go to the overview"));
}

function markCurrent(place, parts) {
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.place === place?.id) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const path = parts.join("/");
  document.title = `${parts.length > 1 ? parts[1] : (place?.label ?? "Not found")} · Tidemill`;
  // Another view: keyboards and screen readers start at its heading. Not at the first, nor for a detail of the same.
  if (shownPath !== null && shownPath !== path) main.querySelector("h1")?.focus({ preventScroll: true });
  if (shownPath !== path) scrollTo(0, 0);
  shownPath = path;
}

function watchConnection() {
  const note = document.getElementById("connection");
  const banner = document.getElementById("lost");
  const words = { connecting: "Connecting…", live: "Live", lost: "Reconnecting…" };
  const seconds = h("span");
  const showSeconds = () => {
    const left = Math.ceil((live.retryAtMs - Date.now()) / 1000);
    seconds.textContent = left > 0 ? `Trying again in ${left} s.` : "Trying again…";
  };
  const show = () => {
    fill(note, h("span", { class: `dot-state ${live.state}` }), words[live.state]);
    const isLost = live.state === "lost";
    if (isLost && banner.hidden) {
      fill(banner, icon("warn"), h("p", null, h("b", null, "The gateway does not answer."), " What you see may be old. ", seconds),
        h("button", { type: "button", onclick: () => live.retryNow() }, "Try now"));
    }
    banner.hidden = !isLost;
    if (isLost) leaveIfOver();
    showSeconds();
  };
  setInterval(() => !banner.hidden && showSeconds(), 500);
  live.on("state", show);
  show();
}

function watchTotals() {
  live.on("overview", ({ detail }) => {
    for (const [name, element] of totals) element.textContent = count(detail.totals?.[name]);
  });
}

function setUpTheme() {
  const button = document.getElementById("theme-toggle");
  const { current, toggle } = globalThis.tidemillTheme;
  const show = () => {
    const other = current() === "dark" ? "light" : "dark";
    fill(button, icon(other === "dark" ? "moon" : "sun"), other === "dark" ? "Dark" : "Light");
    button.setAttribute("aria-label", `Switch to ${other} colours`);
  };
  button.addEventListener("click", toggle);
  document.addEventListener("theme", show);
  show();
}

const IN_TABLES = [
  ["↑ ↓", "Move between rows"],
  ["Page Up, Page Down, Home, End", "Move far"],
  ["Enter", "Open the row"],
  ["Esc", "Close a dialog, leave the search"],
];

function showHelp() {
  const keyed = (keys) => keys.split(keys.includes(",") ? ", " : " ").map((key) => [h("kbd", null, key), " "]);
  const rows = (list) => h("table", { class: "keys" }, h("tbody", null, list.map(([keys, label]) => h("tr", null, h("td", null, keyed(keys)), h("td", null, label)))));
  const isGo = ({ keys }) => keys.startsWith("g ");
  const list = (found) => rows(found.map(({ keys, label }) => [keys === " " ? "Space" : keys, label]));
  infoDialog("Keys", h("h3", null, "Go to"), list(bound().filter(isGo)), h("h3", null, "Here"),
    list(bound().filter((binding) => !isGo(binding))), h("h3", null, "In tables and dialogs"), rows(IN_TABLES));
}

function bindKeys() {
  for (const { id, label, keys } of PLACES) bind(keys, label, () => go([id]));
  bind("/", "Search", () => {
    const box = main.querySelector("[data-search]");
    box?.focus();
    box?.select();
  });
  bind("?", "Show the keys", showHelp);
  bind("d", "Dark or light", () => globalThis.tidemillTheme.toggle());
  document.getElementById("help-open").addEventListener("click", showHelp);
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  listen();
}

function showUser() {
  if (session.username === null) return;
  const leave = async () => {
    // Also when the gateway does not answer: then the next page says so.
    await logOut().catch(() => null);
    location.reload();
  };
  fill(document.getElementById("user"), h("span", { class: "user-name", title: session.username }, session.username),
    h("button", { type: "button", class: "quiet", id: "log-out", onclick: leave }, "Log out"));
}

async function begin() {
  setUpTheme();
  try {
    await loadSession();
  } catch (error) {
    // The console shows that the gateway is away, and goes on when it is back.
    console.error(error);
  }
  if (session.needsLogin && session.username === null) {
    document.body.classList.add("logged-out");
    fill(main, loginView());
    return;
  }
  showUser();
  buildNavigation();
  bindKeys();
  watchConnection();
  watchTotals();
  live.start();
  addEventListener("hashchange", render);
  render();
}

begin();
