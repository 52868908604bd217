// What a key may not do: the pages do not offer it, and the server refuses whatever is posted all the same.

import assert from 'node:assert/strict';

import { api, journey } from './browser.mjs';
import { receive } from './receiver.mjs';

/** Buttons that change nothing at the server, apart from the session. */
const HARMLESS = [
  'Live', 'UTC', 'Keyboard shortcuts', 'Log out', 'Log in with another key', 'Show', 'Count', 'Count them', 'Verify', 'Copy',
  'Copy the raw bytes', 'Try',
];

const receiver = await receive();
receiver.answer('/acme', { status: 500 });
receiver.answer('/globex', { status: 500 });

/** A tenant with everything that a page can show: a dead letter, a waiting delivery, a replay that waits. */
async function tenant(name) {
  const { id } = await api('POST', '/v1/destinations', {
    url: receiver.url(`/${name}`), name: `${name} destination`, tenant: name, retry: { max_attempts: 1 }, breaker: null,
  });
  const post = (what) => api('POST', '/v1/events', { type: `${name}.${what}`, tenant: name, data: { of: name } });
  const list = async (query) => (await api('GET', `/v1/deliveries?destination=${id}&${query}`)).data;
  const event = await post('failed');
  await post('replayed');
  while ((await list('state=dead')).length < 2);
  await api('PATCH', `/v1/destinations/${id}`, { paused: true });
  await post('waiting');
  const replay = await api('POST', '/v1/replays', { destination: id, event_type: `${name}.replayed` });
  // The replay takes its delivery a moment later. After that nothing changes any more.
  while ((await list('state=pending')).length < 2);
  const [dead] = await list('state=dead');
  const [waiting] = await list(`state=pending&event_type=${name}.waiting`);
  return { id, event: event.id, dead: dead.id, waiting: waiting.id, replay: replay.id };
}
const acme = await tenant('acme');
const globex = await tenant('globex');

/** The pages about a tenant. */
const pagesOf = ({ id, event, dead, waiting, replay }) => [
  `/destinations/${id}`, `/destinations/${id}/proof`, `/destinations/${id}/backlog`, `/destinations/${id}/settings`,
  `/events/${event}`, `/deliveries/${dead}`, `/deliveries/${waiting}`, `/replays/${replay}`,
];
const LISTS = ['/', '/deliveries', '/dead-letters', '/events', '/replays', '/activity'];

/** Every form that changes something, with fields that a page would send. */
const formsOf = ({ id, dead, waiting, replay }) => [
  [`/destinations/${id}/pause`, { paused: 'false', next: '/' }],
  [`/destinations/${id}/limits`, { limit_second: '999', max_in_flight: '9' }],
  [`/destinations/${id}/settings`, { name: 'forged', url: 'https://example.com/forged', event_types: '*' }],
  [`/destinations/${id}/secret`, {}],
  [`/destinations/${id}/rotate`, { overlap_s: '0' }],
  [`/destinations/${id}/test`, {}],
  [`/fragments/destinations/${id}/test`, {}],
  [`/destinations/${id}/purge`, { state: 'pending', counted_until: '2026-01-01T00:00:00Z', total: '1', confirm: 'purge 1' }],
  ['/destinations/bulk', { do: 'resume', destination: id, next: '/' }],
  [`/deliveries/${dead}/retry`, {}],
  [`/deliveries/${waiting}/cancel`, {}],
  ['/replays', { destination: id, counted_until: '2026-01-01T00:00:00Z', total: '1', confirm: 'replay 1', form: 'forged' }],
  [`/replays/${replay}/cancel`, {}],
];
const FORMS_OF_ADMINS = [
  ['/keys', { name: 'forged', role: 'admin', form: 'forged' }],
  ['/alerts', { backlog_depth: '1' }],
];

/** What a forged form could have changed. */
const state = async () => {
  const paths = [acme, globex].flatMap(({ id, dead, waiting, replay }) => [
    `/v1/destinations/${id}`, `/v1/deliveries/${dead}`, `/v1/deliveries/${waiting}`, `/v1/replays/${replay}`,
    `/v1/deliveries?destination=${id}&limit=200`, `/v1/activity?destination=${id}&limit=200`,
  ]);
  // The ETA of a replay and the last use of a key depend on the time.
  const untimed = (name, value) => (['eta_s', 'last_used_at'].includes(name) ? null : value);
  const read = async (path) => JSON.stringify(await api('GET', path), untimed);
  return Promise.all([...paths, '/v1/keys', '/v1/alerts', '/v1/replays'].map(read));
};

/**
 * Posts a form as a page of this server would. It is answered with one of the statuses and a page that says why, or (303)
 * with a redirect to such a page.
 */
async function assertRefused(page, path, form, statuses, reason) {
  const { origin } = new URL(page.url());
  const answer = await page.request.post(path, { form, headers: { origin, accept: 'text/html' }, maxRedirects: 0 });
  const { 'set-cookie': cookie = '' } = answer.headers();
  const text = cookie.includes('weir_flash=error.') ? decodeURIComponent(cookie) : await answer.text();
  assert.ok(statuses.includes(answer.status()), `POST ${path}: ${answer.status()} ${text}`);
  assert.match(text, reason, `POST ${path}`);
}

journey('a key that only reads sees every page and no action', async (visit) => {
  const { secret } = await api('POST', '/v1/keys', { name: 'reader', role: 'read' });
  const page = await visit.open('/', { as: secret });
  for (const path of [...LISTS, '/alerts', '/status', ...pagesOf(acme), `/destinations/${acme.id}/purge`]) {
    if (path.endsWith('/purge')) visit.expect(403, /\/purge$/);
    await page.goto(path);
    const offered = await page.locator('button:visible, input[type=submit]:visible').evaluateAll((buttons) =>
      buttons.map((button) => button.getAttribute('aria-label') ?? button.textContent.trim()));
    assert.deepEqual(offered.filter((name) => !HARMLESS.includes(name)), [], path);
    const links = page.getByRole('link', { name: /^(Keys|Purge|Replay (all|\d))/ });
    assert.deepEqual(await links.allTextContents(), [], path);
  }
});

journey('forged forms and requests of a key that only reads are refused and change nothing', async (visit) => {
  const { secret } = await api('POST', '/v1/keys', { name: 'forger', role: 'read' });
  const page = await visit.open('/', { as: secret });
  const before = await state();
  for (const [path, form] of [...formsOf(acme), ...FORMS_OF_ADMINS]) {
    await assertRefused(page, path, form, [403], /needs a key with the role/);
  }
  const { origin } = new URL(page.url());
  const requests = [
    ['PATCH', `/v1/destinations/${acme.id}`, { paused: false }], ['DELETE', `/v1/destinations/${acme.id}`],
    ['POST', `/v1/destinations/${acme.id}/purge`, {}], ['POST', `/v1/destinations/${acme.id}/rotate-secret`, {}],
    ['GET', `/v1/destinations/${acme.id}/secret`], ['POST', `/v1/destinations/${acme.id}/test`],
    ['POST', `/v1/deliveries/${acme.dead}/retry`], ['POST', `/v1/deliveries/${acme.waiting}/cancel`],
    ['POST', '/v1/replays', {}], ['POST', `/v1/replays/${acme.replay}/cancel`], ['PUT', '/v1/alerts', {}],
    ['GET', '/v1/keys'], ['POST', '/v1/keys', { name: 'x', role: 'admin' }],
    ['POST', '/v1/destinations', { url: 'https://example.com/x' }], ['POST', '/v1/events', { type: 'x', data: 1 }],
  ];
  for (const [method, path, data] of requests) {
    const answer = await page.request.fetch(path, { method, data, headers: { origin } });
    assert.equal(answer.status(), 403, `${method} ${path}`);
  }
  assert.deepEqual(await state(), before);
});

journey('a key of one tenant sees its own everywhere, and of others nothing', async (visit) => {
  const { secret } = await api('POST', '/v1/keys', { name: 'of acme', role: 'operate', tenants: ['acme'] });
  const page = await visit.open('/', { as: secret });
  const parts = await page.getByRole('navigation', { name: 'Main' }).getByRole('link').allTextContents();
  for (const name of ['Keys', 'Status']) assert.ok(!parts.includes(name), `${name} is of the installation`);
  for (const path of [...LISTS, ...pagesOf(acme), '/?q=destination', '/activity?actor=WEIR_API_KEYS']) {
    await page.goto(path);
    await page.locator('main').getByText('acme').first().waitFor();
    assert.ok(!(await page.content()).includes('globex'), `${path} shows another tenant`);
  }
  // Numbers count only its own, also when the others get more.
  await page.goto('/');
  const waiting = page.locator('.figures dt:text-is("Waiting") + dd');
  const own = await waiting.textContent();
  await api('POST', '/v1/events', { type: 'globex.more', tenant: 'globex', data: 1 });
  // Two snapshots, whether or not they changed anything.
  for (let snapshot = 0; snapshot < 2; snapshot += 1) {
    const shown = await page.locator('.asof time').getAttribute('datetime');
    await page.waitForFunction((at) => document.querySelector('.asof time').dateTime !== at, shown);
  }
  assert.equal(await waiting.textContent(), own);

  visit.expect(404, /\/(destinations|events|deliveries|replays)\//);
  for (const path of pagesOf(globex)) {
    await page.goto(path);
    assert.ok(!(await page.content()).includes('globex'), `${path} shows another tenant`);
  }
  visit.expect(404, /[?](destination|tenant)=/);
  const foreign = `destination=${globex.id}`;
  for (const path of [`/deliveries?${foreign}`, `/activity?${foreign}`, '/?tenant=globex']) {
    await page.goto(path);
    assert.equal(await page.getByText('globex destination').count(), 0, path);
    assert.equal(await page.getByText('globex.failed').count(), 0, path);
  }
  const before = await state();
  for (const [path, form] of formsOf(globex)) {
    await assertRefused(page, path, form, path === '/replays' ? [303] : [403, 404], /there is no|needs a key with the role/i);
  }
  assert.deepEqual(await state(), before);
});
