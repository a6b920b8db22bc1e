"use strict";
// Refreshes the page: asks for its content as [tag, attributes, ...children], and makes elements and texts of that.
// Nothing of it is read as HTML. Only these tags and attributes are made, whatever the answer says.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const HTML_TAGS = new Set(("b bdi dd details div dl dt figcaption figure h1 h2 h3 h4 header li main ol p section " +
    "span strong summary table tbody td th thead time tr ul").split(" "));
  const SVG_TAGS = new Set("circle g path rect svg text title".split(" "));
  const ATTRIBUTES = new RegExp("^(aria-[a-z]+|class|cx|cy|d|data-label|datetime|height|id|r|role|rx|scope|" +
    "text-anchor|viewBox|width|x|y)$");
  const EVERY = 2000;
  const DEADLINE = 6000;
  const root = document.getElementById("page");
  const connection = document.getElementById("connection");
  let shown = null;
  let answered = new Date();

  function make(tree) {
    if (typeof tree === "string") return document.createTextNode(tree);
    const [tag, attributes, ...children] = tree;
    let node;
    if (SVG_TAGS.has(tag)) node = document.createElementNS(SVG, tag);
    else if (HTML_TAGS.has(tag)) node = document.createElement(tag);
    else throw new Error("unknown tag");
    for (const [name, value] of Object.entries(attributes)) {
      if (!ATTRIBUTES.test(name)) throw new Error("unknown attribute");
      node.setAttribute(name, value);
    }
    for (const child of children) node.appendChild(make(child));
    return node;
  }

  // Change what differs and leave the rest, so that focus, selection, and opened details stay.
  function change(node, before, after) {
    if (JSON.stringify(before) === JSON.stringify(after)) return;
    const isText = typeof after === "string";
    if (isText && typeof before === "string") {
      node.data = after;
      return;
    }
    if (isText || typeof before === "string" || before[0] !== after[0]) {
      node.replaceWith(make(after));
      return;
    }
    for (const name of Object.keys(before[1])) if (!(name in after[1])) node.removeAttribute(name);
    for (const [name, value] of Object.entries(after[1])) {
      if (!ATTRIBUTES.test(name)) throw new Error("unknown attribute");
      if (before[1][name] !== value) node.setAttribute(name, value);
    }
    const nodes = Array.from(node.childNodes);
    const last = Math.max(before.length, after.length);
    for (let i = 2; i < last; i += 1) {
      if (i >= after.length) nodes[i - 2].remove();
      else if (i >= before.length) node.appendChild(make(after[i]));
      else change(nodes[i - 2], before[i], after[i]);
    }
  }

  function say(text) {
    if (connection.textContent !== text) connection.textContent = text;
    document.body.classList.toggle("silent", text !== "");
  }

  async function refresh() {
    try {
      const answer = await fetch("/page.json", { cache: "no-store", signal: AbortSignal.timeout(DEADLINE) });
      if (!answer.ok) throw new Error(answer.statusText);
      const found = await answer.json();
      if (shown === null) root.replaceChildren(make(found.content));
      else change(root.firstChild, shown, found.content);
      shown = found.content;
      document.title = found.title;
      answered = new Date();
      say("");
    } catch {
      say("kdp status has not answered since " + answered.toISOString().slice(11, 19) + " UTC. What is shown is old.");
    }
  }

  async function run() {
    if (!document.hidden) await refresh();
    setTimeout(run, EVERY);
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  setTimeout(run, EVERY);
})();
