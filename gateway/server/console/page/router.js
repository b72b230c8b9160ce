/**
 * Addresses of the console: `/console/SCREEN/MORE?FILTERS`. All state of a screen that a link should keep is in
 * its address.
 *
 * @typedef {object} Params
 * @property {string} screen its name, empty for the first screen
 * @property {string[]} path the parts after the name, decoded
 * @property {URLSearchParams} query
 */

const ROOT = "/console";

/** @returns {Params} */
export function currentParams() {
  const parts = location.pathname.slice(ROOT.length).split("/").filter(Boolean).map(decoded);
  return { screen: parts[0] ?? "", path: parts.slice(1), query: new URLSearchParams(location.search) };
}

/**
 * Return the address of a screen.
 * @param {string} screen @param {string[]} [path] @param {Record<string, string>} [query] empty values are left out
 */
export function addressOf(screen, path = [], query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const search = new URLSearchParams(kept).toString();
  return [ROOT, screen, ...path.map(encodeURIComponent)].join("/") + (search && `?${search}`);
}

/** Open an address of the console. @param {string} address @param {{replace?: boolean}} [how] */
export function goTo(address, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", address);
  else if (address !== location.pathname + location.search) history.pushState(null, "", address);
  dispatchEvent(new CustomEvent("address", { detail: { replace } }));
}

/** Call `changed` whenever the address changes, and follow links of the console without loading the page again. */
export function watchAddress(changed) {
  addEventListener("popstate", () => changed({ replace: false }));
  addEventListener("address", (event) => changed(event.detail));
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    if (link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (link.pathname !== ROOT && !link.pathname.startsWith(`${ROOT}/`)) return;
    event.preventDefault();
    if (link.hash && link.pathname === location.pathname) return;
    goTo(link.pathname + link.search);
  });
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
