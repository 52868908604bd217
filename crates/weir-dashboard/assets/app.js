// Keyboard, zone of the times, pause of live updates, countdowns, dialogs. Every page works without this script.
(() => {
  'use strict';
  const body = document.body;
  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // --- What only works with the script.
  const reveal = (root) => all('[data-all], #zone, #pause-live, [data-dialog], [data-copy]', root)
    .forEach((element) => { element.hidden = false; });

  // --- Times: UTC from the server, or the reader's zone. The axes of charts too.
  const stored = (name, value) => {
    try {
      if (value === undefined) return localStorage.getItem(name);
      localStorage.setItem(name, value);
    } catch { /* The browser keeps nothing; the choice lasts for this page. */ }
    return value;
  };
  let isLocal = stored('weir-zone') === 'local';
  const two = (number) => String(number).padStart(2, '0');
  const day = (at) => isLocal
    ? `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}` : at.toISOString().slice(0, 10);
  const clock = (at) => isLocal
    ? `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}` : at.toISOString().slice(11, 19);
  // The two largest units, as the server writes them.
  const UNITS = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const span = (seconds) => {
    const at = UNITS.findIndex(([length]) => seconds >= length);
    if (at < 0) return '0 s';
    const [[length, unit], [less, smaller] = [1, 's']] = UNITS.slice(at, at + 2);
    const rest = Math.floor(seconds % length / less);
    return `${Math.floor(seconds / length)} ${unit}${rest > 0 && length > 1 ? ` ${rest} ${smaller}` : ''}`;
  };
  // The clock of the server: that of the reader may be wrong.
  let ahead = 0;
  const now = () => Date.now() + ahead;
  const forms = {
    clock,
    day,
    minute: (at) => clock(at).slice(0, 5),
    monthminute: (at) => `${day(at).slice(5)} ${clock(at).slice(0, 5)}`,
    zone: (at, until = at) => `${day(at)}${day(at) === day(until) ? '' : ` to ${day(until)}`} ${
      isLocal ? Intl.DateTimeFormat().resolvedOptions().timeZone : 'UTC'}`,
    countdown: (at) => {
      const left = Math.ceil((at - now()) / 1000);
      return left > 0 ? `in ${span(left)}` : 'any moment';
    },
    left: (at) => span(Math.max(0, Math.ceil((at - now()) / 1000))),
    ago: (at) => (now() - at < 1000 ? 'just now' : `${forms.age(at)} ago`),
    age: (at) => span(Math.max(0, Math.floor((now() - at) / 1000))),
  };
  const show = (element, at, form, until) => {
    const text = (forms[form] || ((when) => `${day(when)} ${clock(when)}`))(at, until);
    if (element.textContent !== text) element.textContent = text;
  };
  const paint = (root) => {
    all('time[datetime]', root).forEach((time) => show(time, new Date(time.dateTime), time.dataset.form));
    let before;
    all('text[data-at]', root).forEach((text) => {
      const { form, until } = text.dataset;
      const at = new Date(Number(text.dataset.at));
      // The label at which the day changes says so. The labels of each axis rise.
      const isNextDay = before < at && day(before) !== day(at) && (form === 'minute' || form === 'clock');
      show(text, at, isNextDay ? 'monthminute' : form, until && new Date(Number(until)));
      before = form === 'zone' ? undefined : at;
    });
    const zone = find('#zone');
    if (zone) {
      zone.textContent = isLocal ? 'Local time' : 'UTC';
      zone.title = `Times are in ${isLocal ? Intl.DateTimeFormat().resolvedOptions().timeZone : 'UTC'}`;
    }
  };
  const turnZone = () => {
    isLocal = !isLocal;
    stored('weir-zone', isLocal ? 'local' : 'utc');
    paint(document);
    paintDates();
  };
  const tick = () => all('time:is([data-form=countdown], [data-form=left], [data-form=age], [data-form=ago])').forEach((time) =>
    show(time, new Date(time.dateTime), time.dataset.form));
  const learnClock = (asOf) => { ahead = new Date(asOf) - Date.now() || 0; };
  const asOf = find('.asof time');
  if (asOf) learnClock(asOf.dateTime);

  // --- Live updates: never while paused, nor below the reader's hands.
  let isPaused = false;
  const liveState = (text, state) => {
    const label = find('#live-state');
    if (!label) return;
    label.textContent = text;
    find('#pause-live').dataset.state = state;
  };
  const turnPause = () => {
    const button = find('#pause-live');
    if (!button) return;
    isPaused = !isPaused;
    button.setAttribute('aria-pressed', String(isPaused));
    liveState(isPaused ? 'Paused' : 'Live', isPaused ? 'paused' : 'on');
    if (!isPaused) htmx.trigger(find('#live'), 'snapshot');
  };
  const isTyping = (element) => element && element.matches('input:not([type=checkbox]), textarea, select');
  const isSelected = (region) => {
    const selection = getSelection();
    return selection && !selection.isCollapsed && selection.containsNode(region, true);
  };
  // Whether the pointer or the focus is in the table of a region.
  const inHand = (region) => {
    const table = find('.scroll', region);
    return Boolean(table) && (table.matches(':hover') || table.contains(document.activeElement));
  };
  const rowsOf = (root) => all('tbody > tr[id]', root);
  // The order of the overview stands still meanwhile.
  let isOrderHeld = false;
  // An update was not shown. No other one follows while nothing changes, so the page asks again when it can show it.
  let isOwed = false;
  const isBusy = (region) => region.classList.contains('htmx-request') || isInUse(region);
  const makeGood = () => {
    const regions = all('[data-live]');
    const isLeft = isOrderHeld && !regions.some((region) => region.dataset.live === 'order' && inHand(region));
    if (!(isOwed || isLeft) || isPaused || regions.some(isBusy)) return;
    isOwed = isOrderHeld = false;
    htmx.trigger(find('#live'), 'snapshot');
  };
  setInterval(tick, 500);
  setInterval(makeGood, 1000);
  // A table that is read keeps its rows: each is shown as it is now, and one that no longer matches stays in its place.
  // In a list, what came since is counted, and comes when the reader asks for it.
  const keepRows = (region, fragment) => {
    const pill = find('.pill', fragment);
    const [shown, fresh, next] = [rowsOf(region), rowsOf(fragment), find('tbody', fragment)];
    if (!next || shown.length === 0) return;
    const gone = shown.filter((row) => !fresh.some(({ id }) => id === row.id));
    const kept = shown.map((row) => fresh.find(({ id }) => id === row.id) || row.cloneNode(true));
    next.replaceChildren(...kept);
    kept.forEach((row, at) => row.classList.toggle('gone', gone.includes(shown[at])));
    if (!pill) return;
    // The rows at the end only fill the page, unless nothing has left it.
    const first = fresh.findIndex((row) => kept.includes(row));
    const added = fresh.filter((row, at) => !kept.includes(row) && (gone.length === 0 || at < first)).length;
    const isNew = Number(pill.dataset.new) + added;
    const parts = [[isNew, `${isNew}${pill.dataset.more} new`], [gone.length, `${gone.length} no longer here`]];
    pill.textContent = parts.filter(([count]) => count > 0).map(([, text]) => text).join(', ');
    pill.hidden = isNew + gone.length === 0;
  };
  const isInUse = (region) => isPaused || find('dialog[open]', region) || isSelected(region)
    || (region.contains(document.activeElement) && isTyping(document.activeElement));
  // A list waits while the row with the focus, or a ticked one, would leave it.
  const loses = (region, html) => [document.activeElement, ...all('input:checked', region)].some((element) => {
    const row = region.contains(element) && element.closest('[id]');
    return row && row !== region && !html.includes(`id="${row.id}"`);
  });
  let focused = null;
  let asked = null;
  document.addEventListener('htmx:config:request', (event) => {
    const region = event.detail.ctx.sourceElement;
    if (!region.matches('[data-live]')) return;
    if (isBusy(region)) { isOwed = true; event.preventDefault(); }
    if (region.dataset.live === 'order' && inHand(region)) {
      event.detail.ctx.request.body.set('held', rowsOf(region).map((row) => row.id.slice('row-'.length)).join(','));
    }
  });
  // An error of one refresh must not replace what is shown; the next refresh follows in a second.
  document.addEventListener('htmx:before:swap', (event) => {
    const ctx = event.detail.ctx;
    const region = ctx && ctx.sourceElement;
    if (region && region.id === 'limits') find('#preview').ariaLive = 'polite';
    if (region && region.matches('.pill')) asked = region.closest('[data-live]').id;
    if (!region || !region.matches('[data-live]')) return;
    const isPreview = region.dataset.live === 'preview';
    // Only what was typed is announced to a screen reader, and not every figure that moves.
    if (isPreview) region.ariaLive = 'off';
    const isError = ctx.response && ctx.response.status >= 400 && !isPreview;
    const { fragment } = event.detail.tasks[0] || {};
    const isPlaced = /[?&]held=/.test(ctx.request.action);
    const isKept = Boolean(fragment) && (isPlaced || Boolean(find('.pill', fragment)));
    if (isKept && !isError) keepRows(region, fragment);
    // The reader has come into the table since it was asked for.
    const isLate = region.dataset.live === 'order' && inHand(region) && !isPlaced;
    const isHeld = isInUse(region) || isLate || (region.dataset.live === 'list' && !isKept && loses(region, ctx.text));
    isOwed ||= isError || isHeld;
    if (isError || isHeld) return event.preventDefault();
    if (region.dataset.live === 'order') isOrderHeld = inHand(region);
    focused = document.activeElement;
  });
  // Old figures beside limits that are typed now would be wrong.
  const losePreview = () => {
    const preview = find('#preview');
    if (!preview || isPaused) return;
    const notice = document.createElement('p');
    notice.className = 'notice bad';
    notice.textContent = 'The preview cannot be read now: the server does not answer.';
    preview.replaceChildren(notice);
  };
  document.addEventListener('htmx:error', ({ detail: { ctx } }) => {
    const source = ctx && ctx.sourceElement;
    if (source && source.matches('#limits, #preview')) losePreview();
    isOwed ||= Boolean(source) && source.matches('[data-live]');
  });
  document.addEventListener('snapshot', ({ detail: { data } }) => { if (data) learnClock(data); });
  // Nothing has changed, as of this instant.
  document.addEventListener('still', ({ detail: { data } }) => {
    learnClock(data);
    const time = find('.asof time');
    if (!time || isPaused) return;
    time.dateTime = time.title = data;
    show(time, new Date(data), time.dataset.form);
  });
  document.addEventListener('htmx:sse:after:connection', () => { if (!isPaused) liveState('Live', 'on'); });
  for (const lost of ['htmx:sse:error', 'htmx:sse:close']) {
    document.addEventListener(lost, () => {
      if (!isPaused) liveState('Reconnecting', 'off');
      losePreview();
    });
  }
  document.addEventListener('htmx:after:swap', () => {
    // A row that has moved has lost the focus in some browsers.
    if (focused && focused.isConnected && document.activeElement === body) focused.focus({ preventScroll: true });
    focused = null;
    // What was pressed is gone: the reader goes on at the first row.
    const first = asked && find(`#${CSS.escape(asked)} a.row`);
    if (first && document.activeElement === body) first.focus();
    asked = null;
    reveal(document);
    paint(document);
  });

  // --- Dialogs, copies, ticks, typed confirmations.
  const open = (id) => {
    const dialog = document.getElementById(id);
    if (dialog && !dialog.open) dialog.showModal();
  };
  const copy = async (button) => {
    const text = document.getElementById(button.dataset.copy).textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without https the clipboard is closed: select the text instead.
      getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
      return;
    }
    const before = button.textContent;
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = before; }, 1200);
  };
  document.addEventListener('click', (event) => {
    const opener = event.target.closest('[data-dialog]');
    if (opener) open(opener.dataset.dialog);
    const copier = event.target.closest('[data-copy]');
    if (copier) copy(copier);
    if (event.target.closest('#zone')) turnZone();
    if (event.target.closest('#pause-live')) turnPause();
  });
  document.addEventListener('change', (event) => {
    if (event.target.id === 'use-keys') {
      usesKeys = event.target.checked;
      stored('weir-keys', usesKeys ? 'on' : 'off');
    }
    if (!event.target.matches('[data-all]')) return;
    all('input[name=destination]', event.target.closest('form')).forEach((box) => { box.checked = event.target.checked; });
  });
  const confirmations = (root) => all('input[data-expect]', root).forEach((input) => {
    const button = find('button', input.closest('form'));
    button.disabled = input.value.trim() !== input.dataset.expect;
  });
  document.addEventListener('input', (event) => {
    if (event.target.matches('input[data-expect]')) confirmations(event.target.closest('form'));
  });

  // --- Keyboard.
  const move = (step) => {
    const rows = all('a.row');
    if (rows.length === 0) return;
    const at = rows.indexOf(document.activeElement);
    const next = at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1);
    rows[next].focus();
  };
  // Speech input types letters by mistake, so a reader can turn the keys off (WCAG 2.1.4). Tab and Enter always work.
  let usesKeys = stored('weir-keys') !== 'off';
  find('#use-keys').checked = usesKeys;
  let isAfterG = false;
  const keys = {
    '/': () => { const jump = find('#jump'); if (jump) { jump.focus(); jump.select(); } },
    '?': () => open('shortcuts'),
    j: () => move(1),
    k: () => move(-1),
    p: turnPause,
    u: turnZone,
  };
  document.addEventListener('keydown', (event) => {
    // Enter on a tick would press the first button of its form, which may pause what is ticked.
    if (event.key === 'Enter' && event.target.matches('input[type=checkbox]')) event.preventDefault();
    // Escape leaves the search, and a row: a list that waits for it goes on.
    if (event.key === 'Escape' && event.target.matches('#jump, a.row')) event.target.blur();
    if (!usesKeys || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (find('dialog[open]')) return;
    if (isAfterG) {
      isAfterG = false;
      const link = find(`nav.side a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === 'g') {
      isAfterG = true;
      setTimeout(() => { isAfterG = false; }, 1500);
    } else if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });

  // --- Dates in forms, in the zone of the page. They come and go in UTC, as without the script.
  const typedAt = (field) => new Date(field.dataset.zone === 'local' ? field.value : `${field.value}Z`);
  function paintDates() {
    const zone = isLocal ? 'local' : 'utc';
    all('input[type=datetime-local]').filter((field) => (field.dataset.zone || 'utc') !== zone).forEach((field) => {
      const at = typedAt(field);
      field.dataset.zone = zone;
      if (!Number.isNaN(at.getTime())) field.value = `${day(at)}T${clock(at)}`;
    });
    all('[data-zone-name]').forEach((name) => { name.textContent = isLocal ? 'local time' : 'UTC'; });
  }
  document.addEventListener('formdata', (event) => {
    all('input[type=datetime-local]', event.target).forEach((field) => {
      const at = typedAt(field);
      if (field.name && !Number.isNaN(at.getTime())) event.formData.set(field.name, at.toISOString().slice(0, 19));
    });
  });

  reveal(document);
  paint(document);
  paintDates();
  confirmations(document);
  // On a phone the pages are in one line, which scrolls; so are the tabs.
  all('.side [aria-current], .tabs [aria-current]').forEach((at) => at.scrollIntoView({ block: 'nearest', inline: 'center' }));
  body.dataset.script = 'on';
})();
