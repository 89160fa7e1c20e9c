// The gateway's API: reads from /console/api, changes through REST v3, and views, delays, dead letters and shrinks through /v1. Addresses are relative to the page, so that the
// console also works behind a proxy that adds a prefix.

/** What went wrong, as a sentence for people. `status` is 0 when the gateway was not reached. */
export class ApiProblem extends Error {
  constructor(status, message, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function problemOf(response) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    // Not our gateway's words; the status has to do.
  }
  const message = body?.message ?? `The gateway answered ${response.status} ${response.statusText}`.trim();
  return new ApiProblem(response.status, message, body?.error_code ?? null);
}

// Who is logged in, where the gateway asks for that. The password is in no variable once it was sent.
export const session = { needsLogin: false, username: null, csrfToken: null };

async function send(path, options) {
  let response;
  try {
    // With this header the gateway lets the page ask for the password, not the browser.
    const headers = { ...options.headers, "x-csrf-token": session.csrfToken ?? "" };
    response = await fetch(path, { cache: "no-store", ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiProblem(0, "The gateway does not answer. Is it running?");
  }
  if (response.status === 401 && session.username !== null) await leaveIfOver();
  if (!response.ok) throw await problemOf(response);
  return response;
}

/** A session that is over leaves nothing on the screen: the page begins anew, at the same place, with the log-in. */
export async function leaveIfOver() {
  if (session.username === null) return;
  const response = await fetch("console/api/session", { cache: "no-store" }).catch(() => null);
  if (response?.ok && (await response.json()).username === null) location.reload();
}

export async function loadSession() {
  const found = await (await send("console/api/session", {})).json();
  session.needsLogin = found.needs_login;
  session.username = found.username;
  session.csrfToken = found.csrf_token;
}

const json = (body) => ({ method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } });
export const logIn = (username, password) => send("console/api/login", json({ username, password }));
export const logOut = () => send("console/api/logout", { method: "POST" });

const segment = encodeURIComponent;

export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  // Positions of many partitions are a long list: colons and commas need no escape, and then take a third.
  const search = new URLSearchParams(given).toString().replaceAll("%3A", ":").replaceAll("%2C", ",");
  return `console/api/${path}${search ? `?${search}` : ""}`;
}

async function read(path, query, signal) {
  return (await send(address(path, query), { signal })).json();
}

export const overview = (signal) => read("overview", {}, signal);
export const throughput = (signal) => read("throughput", {}, signal);
export const brokers = (page, signal) => read("brokers", page, signal);
export const topics = (page, signal) => read("topics", page, signal);
export const topic = (name, signal) => read(`topics/${segment(name)}`, {}, signal);
export const partitions = (name, page, signal) => read(`topics/${segment(name)}/partitions`, page, signal);
export const groups = (page, signal) => read("groups", page, signal);
export const group = (id, signal) => read(`groups/${segment(id)}`, {}, signal);
export const groupLag = (id, signal) => read(`groups/${segment(id)}/lag`, {}, signal);
export const rebalances = (query, signal) => read("rebalances", query, signal);
export const tailAddress = (name, query) => address(`topics/${segment(name)}/tail`, query);
export const messages = (name, query, signal) => read(`topics/${segment(name)}/messages`, query, signal);

/** Where the whole key or value of a record is, to load or to download. */
export const partAddress = (name, { partition, offset }, part) => address(`topics/${segment(name)}/messages/${partition}/${offset}/${part}`);
export const messagePart = async (name, row, part, signal) => new Uint8Array(await (await send(partAddress(name, row, part), { signal })).arrayBuffer());

let clusterId = null;

async function v3(path, method, body) {
  clusterId ??= (await (await send("v3/clusters", {})).json()).data[0].cluster_id;
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  const response = await send(`v3/clusters/${segment(clusterId)}/${path}`, options);
  return response.status === 204 ? null : response.json();
}

export function createTopic(name, partitionCount, replicationFactor, configs) {
  const body = { topic_name: name, configs };
  if (partitionCount !== null) body.partitions_count = partitionCount;
  if (replicationFactor !== null) body.replication_factor = replicationFactor;
  return v3("topics", "POST", body);
}

export const deleteTopic = (name) => v3(`topics/${segment(name)}`, "DELETE");
const configPath = (name, config) => `topics/${segment(name)}/configs/${segment(config)}`;
export const setConfig = (name, config, value) => v3(configPath(name, config), "PUT", { value });
export const resetConfig = (name, config) => v3(configPath(name, config), "DELETE");

async function v1(path, method, body, signal) {
  const options = body === undefined ? { method, signal } : { ...json(body), method, signal };
  const response = await send(`v1/${path}`, options);
  return response.status === 204 ? null : response.json();
}

export const views = (page, signal) => read("views", page, signal);
export const createView = (view) => v1("views", "POST", view);
export const alterView = (name, filter) => v1(`views/${segment(name)}`, "PATCH", { filter });
export const deleteView = (name) => v1(`views/${segment(name)}`, "DELETE");

const shrinkPath = (name) => `topics/${segment(name)}/shrink`;
export const shrink = (name, signal) => v1(shrinkPath(name), "GET", undefined, signal);
export const beginShrink = (name, partitions, isUnkeyed) => v1(shrinkPath(name), "POST", { partitions, unkeyed: isUnkeyed });
export const cancelShrink = (name) => v1(shrinkPath(name), "DELETE");

const delayPath = (name, { partition, offset }) => `topics/${segment(name)}/delays/${partition}/${offset}`;
export const delays = (name, limit, after, signal) =>
  v1(`topics/${segment(name)}/delays?limit=${limit}${after ? `&after=${encodeURIComponent(after)}` : ""}`, "GET", undefined, signal);
export const cancelDelay = (name, message) => v1(delayPath(name, message), "DELETE");
export const reschedule = (name, message, times) => v1(delayPath(name, message), "PATCH", times);

const lettersPath = (name) => `topics/${segment(name)}/dead-letters`;
export const deadLetters = (name, limit, signal) => v1(`${lettersPath(name)}?limit=${limit}`, "GET", undefined, signal);
/** One letter, or all of them for null. */
export const replayDeadLetters = (name, letter) => v1(`${lettersPath(name)}/replay`, "POST", letter === null ? {} : { partition: letter.partition, offset: letter.offset });

/** v3 answers 200 for the stream and says in the body how the record fared. */
export async function produce(name, record) {
  const answer = await v3(`topics/${segment(name)}/records`, "POST", record);
  if (answer.error_code !== 200) throw new ApiProblem(answer.error_code, answer.message, answer.error_code);
  return answer;
}
