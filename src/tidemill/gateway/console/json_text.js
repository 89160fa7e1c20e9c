// JSON as indented, coloured text, from the text that was written: nothing is parsed, so that no number loses a digit, no
// name its place, and a name that appears twice is seen twice. Spans with text nodes, never markup.

import { h } from "./dom.js";

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const INDENT = "  ";

function kindOf(token, next) {
  if (token.startsWith('"')) return next === ":" ? "name" : "string";
  if (token === "true" || token === "false") return "boolean";
  return token === "null" ? "null" : "number";
}

/** [kind, text] in order; marks are punctuation with the white space after it. */
function* pieces(text, newline) {
  const tokens = text.match(TOKEN) ?? [];
  let depth = 0;
  for (let at = 0; at < tokens.length; at += 1) {
    const [token, next] = [tokens[at], tokens[at + 1]];
    if (token === "{" || token === "[") {
      const isEmpty = next === "}" || next === "]";
      depth += 1;
      yield ["mark", isEmpty ? token : token + newline(depth)];
    } else if (token === "}" || token === "]") {
      const wasEmpty = tokens[at - 1] === "{" || tokens[at - 1] === "[";
      depth -= 1;
      yield ["mark", wasEmpty ? token : newline(depth) + token];
    } else if (token === ",") yield ["mark", `,${newline(depth) || " "}`];
    else if (token === ":") yield ["mark", ": "];
    else yield [kindOf(token, next), token];
  }
}

const indented = (depth) => `\n${INDENT.repeat(depth)}`;
const flat = () => "";

export function jsonElements(text) {
  return [...pieces(text, indented)].map(([kind, piece]) => (kind === "mark" ? piece : h("span", { class: `json-${kind}` }, piece)));
}

export function jsonText(text) {
  return [...pieces(text, indented)].map(([, piece]) => piece).join("");
}

/** On one line, for a table's cell. */
export function jsonLine(text) {
  return [...pieces(text, flat)].map(([, piece]) => piece).join("");
}
