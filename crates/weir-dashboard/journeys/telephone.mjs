// Pages full of data in a window of 360 px: accessible in light and dark with everything unfolded, and not wider.

import { api, journey, post } from './browser.mjs';
import { receive } from './receiver.mjs';

const LONG = 'Northwind-Traders-International-Billing-and-Reconciliation-Partner';
const TENANT = 'northwind-traders';
const NARROW = { width: 360, height: 740 };

const receiver = await receive();
const limit = (sends, period = 'second') => ({ limit: sends, period });
const destination = (name, more) =>
  api('POST', '/v1/destinations', { url: receiver.url(`/${name}`), name, event_types: [`${name}.*`], ...more });

receiver.answer('/failing', { status: 503, headers: { 'x-reason': LONG }, text: `${LONG} is closed for maintenance.` });
receiver.answer('/tripped', { status: 500 });
receiver.answer('/held', { status: 429, headers: { 'retry-after': '3600' } });
const draining = await destination('draining', { rate_limits: [limit(1), limit(50, 'minute'), limit(2_500, 'hour')] });
const failing = await destination('failing', {
  retry: { max_attempts: 1 }, breaker: null, headers: { 'x-partner': LONG },
});
const tripped = await destination('tripped', {
  breaker: { consecutive: 2, open_ms: 600_000 }, retry: { max_attempts: 9, base_ms: 100 },
});
const held = await destination('held');
const paused = await destination('paused', { paused: true });
const long = await api('POST', '/v1/destinations', {
  url: receiver.url(`/${LONG}/${LONG}?token=${LONG}`), name: LONG, tenant: TENANT,
  rate_limits: [limit(1_000_000, 'day')],
});
await api('PATCH', `/v1/destinations/${long.id}`, { max_in_flight: 3, paused: true });
for (const [name, count] of [['draining', 90], ['failing', 8], ['tripped', 4], ['held', 3], ['paused', 25]]) {
  await post(`${name}.${LONG}`, count);
}
await post('failing.again', 4);
// The preview of its limits names the time of an expiry.
await api('POST', '/v1/events', { type: 'draining.late', data: 1, ttl_s: 60 });
await receiver.wait('/tripped', 2);
await receiver.wait('/held', 1);
let failed;
do failed = (await api('GET', `/v1/deliveries?state=dead&destination=${failing.id}`)).data; while (failed.length < 12);
// Slow enough to run until the last page, and the others are still dead letters.
await api('PATCH', `/v1/destinations/${failing.id}`, { rate_limits: [limit(1, 'minute')] });
const replay = await api('POST', '/v1/replays', { destination: failing.id, event_type: 'failing.again' });
await api('POST', '/v1/keys', { name: LONG, role: 'operate', tenants: ['default', TENANT] });

/** Each page with everything unfolded. */
async function checkPages(visit, paths) {
  const page = await visit.open('/', NARROW);
  for (const path of paths) {
    await page.goto(path);
    await page.locator('main details').evaluateAll((folded) => folded.forEach((details) => { details.open = true; }));
    // The colours do not depend on the width: every_page.mjs checks them in dark.
    await visit.check(page, `telephone${path}`, ['light']);
  }
}

journey('the overview and destinations in every condition', async (visit) => {
  const tabs = ['', '/proof', '/backlog', '/settings', '/purge'].map((tab) => `/destinations/${draining.id}${tab}`);
  const conditions = [tripped, held, paused, long].map(({ id }) => `/destinations/${id}`);
  await checkPages(visit, ['/', '/?sort=name&state=paused', ...tabs, ...conditions]);
});

journey('deliveries, dead letters, events and replays', async (visit) => {
  const { id, event_id: event } = failed.at(-1);
  await checkPages(visit, [
    '/deliveries', `/deliveries?state=pending,dead&destination=${failing.id}&event_type=failing.*`, `/deliveries/${id}`,
    '/dead-letters', '/events', `/events/${event}`, '/replays', `/replays/${replay.id}`,
    `/replays/new?destination=${failing.id}`,
  ]);
});

journey('the pages of the installation', async (visit) => {
  visit.expect(404, /\/no-such-page$/);
  await checkPages(visit, ['/alerts', '/activity', '/keys', '/status', '/shedding', '/no-such-page']);
});
