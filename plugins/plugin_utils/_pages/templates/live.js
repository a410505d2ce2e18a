// Keeps a page of a fleet up to date: loads it again, and replaces the parts that have changed. Everything is drawn by who writes the page.
(() => {
  'use strict';
  const EVERY = 0.5, HIDDEN = 20, FROM_DISK = 10, LATE = 150;
  const byId = (id) => document.getElementById(id);
  const parts = new Map([...document.querySelectorAll('[data-part]')].map((part) => [part.id, part.outerHTML]));
  const isServed = location.protocol.startsWith('http');
  let skew = 0, seen = '', problem = '', timer = 0, wrote = performance.now(), changes = {};

  const now = () => Date.now() / 1000 + skew;
  const words = (seconds) => {
    let left = Math.max(0, Math.round(seconds));
    const found = [];
    for (const [size, unit] of [[86400, 'd'], [3600, 'h'], [60, 'm'], [1, 's']]) {
      const count = Math.floor(left / size);
      left -= count * size;
      if (count) found.push(count + unit);
      else if (found.length) break;
      if (found.length === 2) break;
    }
    return found.join(' ') || '<1s';
  };

  const hasEnded = () => byId('top').dataset.ended === '1' || Boolean(changes.ended);

  const tick = () => {
    for (const one of document.querySelectorAll('[data-since]')) {
      const text = words(now() - Number(one.dataset.since));
      if (one.textContent !== text) one.textContent = text;
    }
    const top = byId('top').dataset, age = (performance.now() - wrote) / 1000, stale = byId('stale');
    // From a disk, a page of hosts can't tell: it is written only if one of them changes.
    const isLate = (isServed || !top.seldom) && !hasEnded() && age > LATE;
    // The overview has these texts itself.
    const told = !top.seldom ? '' : changes.error ? `${changes.error} The page shows the last known state.`
      : hasEnded() ? 'This page is no longer updated.' : '';
    const text = problem || told || (isLate ? `This page was not written for ${words(age)}. The process that writes it may have ended.` : '');
    if (stale.textContent !== text) stale.textContent = text;
    stale.hidden = !text;
  };

  const hasSelection = (part) => {
    const selected = getSelection();
    return !selected.isCollapsed && part.contains(selected.anchorNode);
  };

  const withoutTimes = (part) => {
    const copy = part.cloneNode(true);
    for (const one of copy.querySelectorAll('[data-since]')) one.remove();
    return copy.innerHTML;
  };

  const replace = (old, fresh) => {
    // A screen reader would read all of it again. The durations go on by themselves.
    if (fresh.getAttribute('role') === 'status' && withoutTimes(old) === withoutTimes(fresh)) return;
    const active = old.contains(document.activeElement) ? document.activeElement : null;
    for (const one of old.querySelectorAll('details[id]')) {
      const same = fresh.querySelector('#' + CSS.escape(one.id));
      if (same) same.open = one.open;
    }
    const scrolled = [...old.querySelectorAll('.scroll')].map((one) => one.scrollLeft);
    // What somebody types stays.
    const form = old.querySelector('form'), other = fresh.querySelector('form');
    if (form && other) other.replaceWith(form);
    const isStatus = fresh.getAttribute('role') === 'status', shown = isStatus ? old : fresh;
    // A screen reader reads what changes in an element that stays.
    if (isStatus) old.replaceChildren(...fresh.childNodes);
    else old.replaceWith(fresh);
    [...shown.querySelectorAll('.scroll')].forEach((one, at) => { one.scrollLeft = scrolled[at] || 0; });
    if (active && !active.isConnected) {
      const link = active.getAttribute('href'), details = active.closest('details[id]');
      const command = (button) => button.previousElementSibling.textContent;
      const same = link ? [...shown.querySelectorAll('a')].find((one) => one.getAttribute('href') === link)
        : active.dataset.copy !== undefined ? [...shown.querySelectorAll('[data-copy]')].find((one) => command(one) === command(active))
        : active.tagName === 'SUMMARY' && details ? shown.querySelector(`#${CSS.escape(details.id)} > summary`)
        : shown.querySelector('[tabindex]');
      if (same) same.focus({preventScroll: true});
    } else if (active) active.focus({preventScroll: true});
  };

  // Returns whether all of it is shown now.
  const take = (text) => {
    const page = new DOMParser().parseFromString(text, 'text/html'), script = page.querySelector('script');
    if (!page.getElementById('top')) throw new Error('this is another page now');
    // Another release of the collection writes other pages.
    if (script && script.textContent !== document.querySelector('script').textContent) { loadAgain(); return true; }
    let isWhole = true;
    for (const fresh of page.querySelectorAll('[data-part]')) {
      const old = byId(fresh.id), source = fresh.outerHTML;
      if (!old || parts.get(fresh.id) === source) continue;
      if (hasSelection(old)) { isWhole = false; continue; }
      parts.set(fresh.id, source);
      replace(old, document.importNode(fresh, true));
    }
    document.title = page.title;
    return isWhole;
  };

  const get = async (name, cache) => {
    const answer = await fetch(name, {cache, signal: AbortSignal.timeout(20000)});
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const date = Date.parse(answer.headers.get('Date'));
    if (date) skew = (date - Date.now()) / 1000;
    return answer;
  };

  const load = async () => {
    clearTimeout(timer);
    try {
      const {base, name} = byId('top').dataset;
      // The times of files have seconds on most servers, so their answers on what has changed can be wrong.
      const found = await (await get(`${base}changes.json`, 'no-store')).json(), current = found[name];
      // What was found first may be old. What follows was just written, whatever the clocks say.
      const age = changes.written ? 0 : 1000 * Math.max(0, now() - Number(found.written));
      if (found.written !== changes.written) wrote = performance.now() - age;
      changes = found;
      if (!current) throw new Error(changes.error || 'its hosts have moved to other pages; go to the overview');
      if (current !== seen && take(await (await get(location.pathname, 'reload')).text())) {
        seen = current;
        // A host that joins may move others to other pages.
        hosts = null;
      }
      problem = '';
    } catch (error) {
      problem = `This page can't be loaded again: ${error.message}. It shows the last known state.`;
    }
    tick();
    timer = setTimeout(load, 1000 * (document.hidden || hasEnded() ? HIDDEN : EVERY));
  };

  const allDetails = () => [...document.querySelectorAll('details[id]')];

  // What a reader has opened and closed stays so, also on the page that is loaded in place of this one.
  const loadAgain = () => {
    history.replaceState(Object.fromEntries(allDetails().map((one) => [one.id, one.open])), '');
    location.reload();
  };

  const reload = () => {
    const isBusy = !getSelection().isCollapsed || document.hidden || hasEnded();
    if (!isBusy) loadAgain();
  };

  const copy = async (button) => {
    const code = button.parentNode.querySelector('code');
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = 'Copied';
    } catch {
      // Browsers have no clipboard for pages without TLS.
      getSelection().selectAllChildren(code);
      button.textContent = document.execCommand('copy') ? 'Copied' : 'Selected';
      getSelection().removeAllRanges();
    }
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  };

  let hosts = null;
  const find = async (name, isWanted) => {
    const list = byId('found');
    try {
      hosts ||= await (await fetch('hosts/index.json', {cache: 'no-cache'})).json();
    } catch {
      list.textContent = 'The list of hosts can\'t be loaded.';
      return;
    }
    const link = (host) => `hosts/${hosts[host]}.html#h-${encodeURIComponent(host)}`;
    if (isWanted && Object.hasOwn(hosts, name)) { location.href = link(name); return; }
    const found = name ? Object.keys(hosts).filter((host) => host.includes(name)).slice(0, 8) : [];
    list.replaceChildren(...found.map((host) => {
      const item = document.createElement('li'), anchor = document.createElement('a');
      anchor.href = link(host);
      anchor.textContent = host;
      item.append(anchor);
      return item;
    }));
    if (isWanted && !found.length) list.textContent = `No host has ${name} in its name.`;
  };

  // A reader who follows a link to a host sees all of its details.
  const openTarget = () => {
    const target = document.querySelector('article:target');
    if (target) for (const one of target.querySelectorAll('details')) one.open = true;
  };

  addEventListener('hashchange', openTarget);
  document.addEventListener('click', (event) => {
    const button = event.target.closest('[data-copy]');
    if (button) copy(button);
  });
  document.addEventListener('submit', (event) => {
    event.preventDefault();
    find(event.target.elements.name.value.trim(), true);
  });
  document.addEventListener('input', (event) => {
    if (event.target.form && event.target.form.id === 'find') find(event.target.value.trim(), false);
  });

  document.documentElement.classList.add('runs');
  openTarget();
  for (const one of allDetails()) one.open = (history.state || {})[one.id] ?? one.open;
  if (isServed) {
    document.addEventListener('visibilitychange', () => { if (!document.hidden) load(); });
    load();
  } else {
    // Browsers load no other file for a page from a disk.
    const form = byId('find');
    if (form) form.hidden = true;
    wrote -= 1000 * Math.max(0, now() - Number(byId('top').dataset.written));
    setInterval(reload, 1000 * FROM_DISK);
  }
  setInterval(tick, 1000);
  tick();
})();
