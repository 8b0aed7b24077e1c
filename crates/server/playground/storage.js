// The browser's storage. It may be full, or switched off.

/** Pages below different prefixes of one host keep different conversations. */
const STORAGE_NAME = `candlepower-playground:${SERVER.pathname}`;
/** Most characters that are kept. Browsers keep about five million for all pages of a host. */
const MAX_STORED = 2000000;

function readStored(storage, name) {
  try {
    return globalThis[storage].getItem(STORAGE_NAME + name);
  } catch {
    return null;
  }
}

/** Keeps a text, or removes it where it is null. Returns whether this worked. */
function writeStored(storage, name, text) {
  try {
    if (text === null) globalThis[storage].removeItem(STORAGE_NAME + name);
    else globalThis[storage].setItem(STORAGE_NAME + name, text);
    return true;
  } catch {
    return false;
  }
}

/** The JSON of a value, or null if it is nested too deep. */
function jsonOrNull(value) {
  try {
    return JSON.stringify(value);
  } catch {
    return null;
  }
}

/**
 * Keeps the page's state, for this tab and for new ones. Large conversations lose log-probabilities and images first. Returns what is
 * not kept, or null.
 */
function keepState(stateOf) {
  const lost = [null, 'log-probabilities', 'log-probabilities and images'];
  for (const [lighter, name] of lost.entries()) {
    const text = jsonOrNull(stateOf(lighter));
    if (text === null || text.length > MAX_STORED || !writeStored('localStorage', '', text)) continue;
    // An older copy would hide the new one.
    if (!writeStored('sessionStorage', '', text)) writeStored('sessionStorage', '', null);
    return name;
  }
  return 'the newest turns';
}

/** The state that this tab kept, or else the newest one of all tabs. */
function keptState() {
  return readStored('sessionStorage', '') ?? readStored('localStorage', '');
}
