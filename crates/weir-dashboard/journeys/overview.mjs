// The overview: those in trouble first, the filter, bulk actions, and numbers that change without a reload.

import assert from 'node:assert/strict';

import { api, figure, journey, post, ready } from './browser.mjs';
import { receive } from './receiver.mjs';

const receiver = await receive();
const limit = (sends, period = 'second') => [{ limit: sends, period }];

const destination = (name, more = {}) =>
  api('POST', '/v1/destinations', { url: receiver.url(`/${name}`), name, event_types: [`${name}.*`], ...more });

const names = (page) => page.locator('table.overview a.row').allTextContents();

journey('destinations in trouble come first, and each says why it waits', async (visit) => {
  receiver.answer('/broken', { status: 503 });
  await destination('healthy', { rate_limits: limit(50) });
  await destination('slow', { rate_limits: limit(1) });
  await destination('stopped', { paused: true });
  await destination('broken', { breaker: { consecutive: 2, open_ms: 600_000 }, retry: { max_attempts: 5, base_ms: 100 } });
  await post('slow.made', 100);
  await post('stopped.made', 3);
  await post('broken.made', 5);
  const page = await visit.open('/');
  const why = (name) => page.getByRole('row').filter({ has: page.getByRole('link', { name, exact: true }) }).locator('.why');
  // The page is live: what it waits for appears without a reload.
  await why('slow').getByText('limit').waitFor();
  await why('broken').getByText('breaker').waitFor();
  await why('stopped').getByText('paused').waitFor();
  const shown = await names(page);
  assert.equal(shown.at(-1), 'healthy', `those in trouble come first: ${shown}`);
  assert.equal(await figure(page, 'Destinations').textContent(), '4');
  // The pictures of all, and one in each row.
  await page.getByRole('img', { name: /^Arriving .* sent .* in the last half hour$/ }).waitFor();
  await page.getByRole('row').filter({ hasText: 'slow' }).getByRole('img', { name: /^Last half hour: 100 arrived/ }).waitFor();
  await visit.check(page, 'overview');
});

journey('the filter is in the URL, and live updates keep it', async (visit) => {
  const page = await visit.open('/');
  await page.getByLabel('Part of the name or URL').fill('slow');
  const live = page.waitForResponse(/\/fragments\/overview\?q=slow/);
  await page.getByRole('button', { name: 'Show' }).click();
  await page.waitForURL(/q=slow/);
  await live;
  assert.deepEqual(await names(page), ['slow']);
  await page.getByLabel('Part of the name or URL').fill('nobody');
  await page.keyboard.press('Enter');
  await page.getByText('No destination matches').waitFor();
  await page.getByRole('link', { name: 'Show all destinations' }).click();
  await page.getByRole('link', { name: 'healthy' }).waitFor();
  await page.getByLabel('State').selectOption('paused');
  await page.getByRole('button', { name: 'Show' }).click();
  await page.waitForURL(/state=paused/);
  assert.deepEqual(await names(page), ['stopped']);
});

journey('ticked destinations are paused and resumed together, and live updates keep the ticks', async (visit) => {
  const page = await visit.open('/?sort=name');
  const answered = () => page.waitForResponse(/\/fragments\/overview/);
  await page.getByRole('button', { name: 'Pause ticked' }).click();
  await page.getByText('Tick the destinations first').waitFor();
  await page.getByLabel('Tick healthy').check();
  await page.getByLabel('Tick slow').check();
  await answered();
  await answered();
  assert.equal(await page.getByLabel('Tick healthy').isChecked(), true);
  await page.getByRole('button', { name: 'Pause ticked' }).click();
  await page.getByText('2 destinations paused').waitFor();
  assert.match(page.url(), /\?sort=name$/);
  const { data } = await api('GET', '/v1/overview?state=paused&sort=name');
  assert.deepEqual(data.map((row) => row.destination.name), ['healthy', 'slow', 'stopped']);
  await page.getByLabel('Tick all rows').check();
  await page.getByRole('button', { name: 'Resume ticked' }).click();
  await page.getByText('4 destinations resumed').waitFor();
  assert.deepEqual((await api('GET', '/v1/overview?state=paused')).data, []);
});

journey('live updates stop when the reader pauses them, and go on with the key p', async (visit) => {
  const page = await visit.open('/?q=slow');
  const sending = figure(page, 'As of');
  const before = await sending.textContent();
  await page.waitForFunction((text) => document.querySelector('.asof dd').textContent !== text, before);
  await page.getByRole('button', { name: 'Live' }).click();
  await page.getByRole('button', { name: 'Paused' }).waitFor();
  const paused = await sending.textContent();
  // Another viewer gets two snapshots meanwhile.
  const other = await visit.open('/');
  await other.waitForResponse(/\/fragments\/overview/);
  await other.waitForResponse(/\/fragments\/overview/);
  assert.equal(await sending.textContent(), paused);
  await page.keyboard.press('p');
  await page.waitForFunction((text) => document.querySelector('.asof dd').textContent !== text, paused);
});

journey('nothing moves under the hand: the order stands still while the pointer or the focus is in the table', async (visit) => {
  const tenant = 'still';
  const settled = { tenant, paused: true };
  for (const name of ['first', 'second', 'third']) await destination(name, { ...settled, event_types: [`${name}.*`] });
  const arrive = (name, count) =>
    api('POST', '/v1/events/batch', { events: Array.from({ length: count }, (_, n) => ({ type: `${name}.made`, tenant, data: n })) });
  await arrive('first', 9);
  await arrive('second', 5);
  await arrive('third', 1);
  const page = await visit.open(`/?tenant=${tenant}&sort=backlog`);
  const backlog = (name, count) => page.getByRole('row').filter({ hasText: name }).getByRole('cell', { name: String(count), exact: true });
  const shown = (expected) => page.waitForFunction((names) =>
    [...document.querySelectorAll('table.overview a.row')].map((row) => row.textContent).join() === names, expected.join());
  await shown(['first', 'second', 'third']);

  await page.getByRole('link', { name: 'second', exact: true }).hover();
  await arrive('third', 20);
  await backlog('third', 21).waitFor();
  assert.deepEqual(await names(page), ['first', 'second', 'third'], 'its figures are new, and its place is old');
  await page.getByText('3 rows are elsewhere by now').waitFor();
  await page.mouse.move(5, 5);
  await shown(['third', 'first', 'second']);

  await page.getByRole('link', { name: 'second', exact: true }).focus();
  await arrive('second', 40);
  await backlog('second', 45).waitFor();
  assert.deepEqual(await names(page), ['third', 'first', 'second']);
  await ready(page);
  await page.keyboard.press('Escape');
  await shown(['second', 'third', 'first']);

  // The line that says so pushes nothing down, where it has no room either.
  await page.setViewportSize({ width: 360, height: 2400 });
  const row = page.getByRole('link', { name: 'second', exact: true });
  await row.hover();
  const before = await row.boundingBox();
  await arrive('first', 90);
  await page.locator('tr', { hasText: 'first' }).getByText('99', { exact: true }).waitFor();
  assert.deepEqual(await row.boundingBox(), before);
});

journey('scroll, focus and ticks survive ten updates at every width', async (visit) => {
  for (const width of [601, 760, 1024, 1200]) {
    const page = await visit.open('/?sort=name', { width, height: 420 });
    await page.getByLabel('Tick healthy').check();
    await page.getByLabel('Tick stopped').focus();
    const before = await page.evaluate(() => {
      scrollTo(0, 160);
      // What is replaced loses its mark.
      for (const element of document.querySelectorAll('#bulk, #bulk .scroll, #bulk tr')) element.isMarked = true;
      return { y: scrollY, elements: document.querySelectorAll('#bulk, #bulk .scroll, #bulk tr').length };
    });
    assert.ok(before.y > 0, `the page is long enough to scroll at ${width} px`);
    for (let update = 0; update < 10; update += 1) {
      // Something changes, so the page asks.
      const asked = page.waitForResponse(/\/fragments\/overview\?/);
      await post('stopped.made', 1);
      await (await asked).finished();
    }
    const after = await page.evaluate(() => ({
      y: scrollY,
      elements: [...document.querySelectorAll('#bulk, #bulk .scroll, #bulk tr')].filter((element) => element.isMarked).length,
    }));
    assert.deepEqual(after, before, `at ${width} px`);
    assert.equal(await page.getByLabel('Tick healthy').isChecked(), true);
    assert.equal(await page.evaluate(() => document.activeElement.ariaLabel), 'Tick stopped', `at ${width} px`);
    await page.close();
  }
});

journey('why a backlog waits and when it drains are in sight at every width, and the table fits', async (visit) => {
  const page = await visit.open('/');
  for (const width of [621, 700, 768, 901, 1024, 1100, 1280, 1440]) {
    await page.setViewportSize({ width, height: 900 });
    for (const name of ['Why', 'Drains in', 'Backlog']) {
      const head = page.getByRole('columnheader', { name });
      const { x, width: wide } = await head.boundingBox();
      assert.ok(x >= 0 && x + wide <= width, `${name} is at ${x} to ${x + wide} of ${width} px`);
    }
    const [needed, given] = await page.locator('#destinations').evaluate((box) => [box.scrollWidth, box.clientWidth]);
    assert.ok(needed <= given, `the table is ${needed} px wide in ${given} px, at ${width} px`);
  }
});

journey('an idle page asks for nothing, and the next change is shown', async (visit) => {
  const tenant = 'quiet';
  await destination('quiet', { tenant, event_types: ['quiet.*'], paused: true });
  const page = await visit.open(`/?tenant=${tenant}`);
  const asked = [];
  page.on('request', (request) => { if (request.url().includes('/fragments/')) asked.push(request.url()); });
  const asOf = page.locator('.asof time');
  const seconds = async (count) => {
    for (let second = 0; second < count; second += 1) {
      const shown = await asOf.getAttribute('datetime');
      await page.waitForFunction((at) => document.querySelector('.asof time').dateTime !== at, shown);
    }
  };
  // The first snapshot of a stream is read, because the page may be older.
  await seconds(2);
  const before = asked.length;
  await seconds(5);
  assert.deepEqual(asked.slice(before), [], 'nothing has changed');
  await api('POST', '/v1/events', { type: 'quiet.made', tenant, data: 1 });
  await page.getByRole('row').filter({ hasText: 'quiet' }).getByRole('cell', { name: '1', exact: true }).waitFor();
  assert.ok(asked.length > before);
});

journey('the line above the table leads to what is broken, and the head of a column sorts', async (visit) => {
  const page = await visit.open('/');
  await page.getByRole('link', { name: '1 broken' }).click();
  await page.waitForURL(/state=breaker/);
  assert.deepEqual(await names(page), ['broken']);
  await page.getByRole('link', { name: '1 broken' }).click();
  await page.waitForURL((address) => !address.search.includes('state='));
  await page.getByRole('columnheader', { name: 'Destination' }).getByRole('link').click();
  await page.waitForURL(/sort=name/);
  const rising = await names(page);
  assert.deepEqual(rising, rising.toSorted((a, b) => a.toLowerCase() < b.toLowerCase() ? -1 : 1));
  await page.getByRole('columnheader', { name: 'Destination' }).getByRole('link').click();
  await page.waitForURL(/reverse=true/);
  assert.deepEqual(await names(page), rising.toReversed());
  assert.equal(await page.getByRole('columnheader', { name: 'Destination' }).getAttribute('aria-sort'), 'descending');
});

journey('no table is wider than its box, whatever destinations are called', async (visit) => {
  const long = 'Northwind-Traders-International-Billing-and-Reconciliation-Partner';
  const periods = [[10, 'second', 3], [300, 'minute'], [5_000, 'hour'], [50_000, 'day']];
  const limits = { rate_limits: periods.map(([sends, period, burst]) => ({ limit: sends, period, burst })) };
  await destination('four-limits', limits);
  await destination('nameless', { ...limits, name: '', url: receiver.url(`/${long}/${long}?token=${long}`) });
  await destination(`${long}-${long.toLowerCase()}`.slice(0, 100), limits);
  await destination('of-a-tenant', { ...limits, tenant: long.toLowerCase().slice(0, 64) });
  await post('four-limits.made', 60);
  await post(`of-a-tenant.${long.toLowerCase()}`.slice(0, 64), 1);
  await api('POST', '/v1/keys', { name: long, role: 'read' });
  const { id } = await destination('busy', { ...limits, paused: true });
  await post('busy.made', 3);

  /** The tables that are wider than their boxes. */
  const wider = (page) => page.locator('.scroll').evaluateAll((boxes) => boxes
    .filter((box) => box.scrollWidth > box.clientWidth)
    .map((box) => `${box.ariaLabel}: ${box.scrollWidth} px in ${box.clientWidth} px`));
  const paths = [
    '/?sort=name', '/activity', '/deliveries', '/events', '/keys', '/dead-letters', '/replays', '/alerts', '/status',
    `/destinations/${id}/backlog`, `/destinations/${id}/proof`,
  ];
  for (const width of [360, 1280]) {
    const page = await visit.open('/', { width });
    for (const path of paths) {
      await page.goto(path);
      await page.locator('main details').evaluateAll((folded) => folded.forEach((details) => { details.open = true; }));
      assert.deepEqual(await wider(page), [], `${path} at ${width} px`);
      await visit.assertFits(page, `${path} at ${width} px`);
      await visit.picture(page, `wide-${width}${path.replace(id, 'busy')}`);
    }
  }
});
