// What outlives a reload. Storage may be full or forbidden; the page then works without it.

const PREFIX = "benthic.";

/** The stored value, or `fallback`. */
export function load(name, fallback, storage = localArea()) {
  try {
    const text = storage?.getItem(PREFIX + name);
    return text === null || text === undefined ? fallback : JSON.parse(text);
  } catch {
    return fallback;
  }
}

/** Stores a value; undefined removes it. */
export function save(name, value, storage = localArea()) {
  try {
    if (value === undefined) storage?.removeItem(PREFIX + name);
    else storage?.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Full: what was stored before stays.
  }
}

export function localArea() {
  try {
    return window.localStorage;
  } catch {
    return null;
  }
}

export function sessionArea() {
  try {
    return window.sessionStorage;
  } catch {
    return null;
  }
}
