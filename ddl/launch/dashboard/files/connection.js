// How the page gets in, and what it hears: the token, the stream of events, and a new one when it breaks.

const AGAIN = 2000; // milliseconds until the next try
const KEY = "ddl-token";

/** The token stands behind the # of the address. It goes from there at once, so that nobody reads or copies it. */
function token() {
  const given = location.hash.slice(1);
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY) || "";
}

/** Exchange the token for a cookie; return "live" or "replay". Raises an Error that says what to do. */
export async function enter() {
  if (token()) await ask("enter", { headers: { "X-DDL-Token": token() } });
  return (await ask("mode")).mode;
}

export async function ask(path, options = {}) {
  const answer = await fetch(path, options);
  if (!answer.ok) throw new Error(`${(await answer.text()).trim()} (${answer.status})`);
  return answer.json();
}

export function takeDump() {
  return ask("dump", { method: "POST", headers: { "X-DDL-Token": token() } });
}

/** Follow the job. `hear(kind, record)` is called for each event, `lost(seconds)` while there is no connection. */
export function follow(hear, lost) {
  let silentSince = 0;
  const begin = () => {
    const stream = new EventSource("feed");
    for (const kind of ["story", "job", "state", "lines", "event", "end"]) {
      stream.addEventListener(kind, (event) => {
        silentSince = 0;
        hear(kind, JSON.parse(event.data));
        if (kind === "end") stream.close();
      });
    }
    stream.onerror = () => {
      stream.close();
      silentSince = silentSince || Date.now();
      lost(Math.round((Date.now() - silentSince) / 1000));
      setTimeout(begin, AGAIN);
    };
  };
  begin();
}

addEventListener("hashchange", () => location.hash.length > 1 && location.reload());
