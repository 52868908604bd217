// The overview: those in trouble first, the filter, bulk actions, and numbers that change without a reload.

import assert from 'node:assert/strict';

import { api, figure, journey, post } from './browser.mjs';
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
