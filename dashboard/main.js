// The frame around the views: login, menu, and the view that the address names.

import { call, hasKey, setKey } from "./api.js";
import { COLLECTIONS } from "./lib/resources.js";
import { follow, go, to } from "./router.js";
import { getCaller, setCaller } from "./store.js";
import { fill, h } from "./ui/dom.js";
import { badge, button, link, problem } from "./ui/page.js";
import { listen, show as showShortcuts } from "./ui/shortcuts.js";
import * as certificates from "./views/certificates.js";
import * as gateway from "./views/gateway.js";
import * as history from "./views/history.js";
import * as live from "./views/live.js";
import { askForKey } from "./views/login.js";
import * as members from "./views/members.js";
import * as nodes from "./views/nodes.js";
import * as overview from "./views/overview.js";
import * as plugins from "./views/plugins.js";
import * as resource from "./views/resource.js";
import * as resources from "./views/resources.js";
import * as tester from "./views/tester.js";
import * as transfer from "./views/transfer.js";

/** Each has `show(main, place, signal)`; all its work ends with the signal. */
const VIEWS = { live, overview, nodes, members, resources, resource, tester, history, certificates, plugins, gateway, transfer };

const MENU = [
  [to("live"), "Live traffic"],
  [to("overview"), "Overview"],
  [to("nodes"), "Upstream health"],
  [to("tester"), "Route tester"],
  [to("history"), "History"],
  [to("certificates"), "Certificates"],
  [to("plugins"), "Plugins"],
  [to("gateway"), "This gateway"],
  [to("members"), "Gateways"],
  [to("transfer"), "Import and export"],
];

/** The width from which on the menu is beside the page, without a way to open it. */
const wide = matchMedia("(min-width: 60rem)");
wide.addEventListener("change", () => {
  const menu = header.querySelector(".menu");
  if (menu) menu.open = wide.matches;
});

const header = document.getElementById("header");
const main = document.getElementById("main");

function drawHeader() {
  const caller = getCaller();
  if (!caller) return fill(header, h("span", { class: "brand" }, "Sigma"));
  const collections = COLLECTIONS.map((one) => h("li", {}, link(one.title, to("resources", one.segment))));
  const others = MENU.map(([href, title]) => h("li", {}, link(title, href)));
  const leave = caller.key_required && button("Log out", logOut, { kind: "quiet" });
  const nav = h("nav", { "aria-label": "Views" }, h("ul", {}, others), h("h2", {}, "Resources"), h("ul", {}, collections));
  const menu = h("details", { class: "menu", open: wide.matches }, h("summary", {}, "Menu"), nav);
  return fill(
    header,
    h(
      "div",
      { class: "bar" },
      link("Sigma", to("live"), { class: "brand" }),
      badge(caller.role),
      h("span", { class: "spacer" }),
      button("Shortcuts", showShortcuts, { kind: "quiet", shortcut: "?" }),
      leave,
    ),
    menu,
  );
}

function markMenu(hash) {
  for (const one of header.querySelectorAll("nav a")) {
    const href = one.getAttribute("href");
    const isHere = hash === href || hash.startsWith(`${href}/`);
    if (isHere) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  // On a narrow page an open menu would hide the view that was chosen.
  const menu = header.querySelector(".menu");
  if (menu && !wide.matches) menu.open = false;
}

async function show(place, signal) {
  if (!getCaller()) return;
  const view = VIEWS[place.name];
  if (!view) return go(to("live"));
  markMenu(location.hash);
  const root = h("div", { class: "view" });
  fill(main, root);
  try {
    await view.show(root, place, signal);
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return;
    if (error.status === 401) return logOut();
    root.append(problem(error));
  }
  if (!signal.aborted && document.activeElement === document.body) main.focus({ preventScroll: true });
}

function logOut() {
  setKey(null);
  // The data of the page is gone with it.
  location.reload();
}

/** Reads the role of the caller; asks for a key until the gateway accepts one. */
async function enter() {
  for (let refusal = null; ; ) {
    try {
      setCaller((await call("GET", "caller")).body);
      return;
    } catch (error) {
      if (error.status !== 401) refusal = error;
      else refusal = hasKey() ? new Error("The gateway does not accept this key.") : null;
      setKey(null);
      drawHeader();
      setKey(await askForKey(main, refusal));
    }
  }
}

await enter();
drawHeader();
listen();
follow(show);
