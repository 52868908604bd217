// Keys, alerts, activity and status; empty states; narrow windows.

import assert from 'node:assert/strict';

import { api, journey, url } from './browser.mjs';

const PAGES = ['/', '/deliveries', '/dead-letters', '/events', '/replays', '/alerts', '/activity', '/keys', '/status', '/shedding'];

// First: later journeys fill the pages.
journey('empty pages show the command that fills them, also on a telephone', async (visit) => {
  const page = await visit.open('/');
  for (const path of PAGES) {
    await page.goto(path);
    await visit.check(page, `empty${path}`);
    if (!['/alerts', '/status', '/shedding'].includes(path)) await page.getByText(/^curl http/).first().waitFor();
  }
  const telephone = await visit.open('/', { width: 360 });
  for (const path of PAGES) {
    await telephone.goto(path);
    await visit.check(telephone, `narrow${path}`);
  }
});

journey('a key is made, shown once, used and deleted', async (visit) => {
  const page = await visit.open('/keys');
  await page.getByLabel('Name').fill('video service');
  await page.getByLabel('read reads').check();
  await page.getByRole('button', { name: 'Create key' }).click();
  const secret = await page.locator('#secret').textContent();
  assert.match(secret, /^wk_/);
  await visit.check(page, 'key-created');
  await api('GET', '/v1/deliveries', undefined, { as: secret });
  await page.goto('/keys');
  assert.equal(await page.getByText(secret).count(), 0);
  const row = page.getByRole('row').filter({ hasText: 'video service' });
  await row.getByText('Delete…').click();
  await row.getByRole('checkbox').check();
  await row.getByRole('button', { name: 'Delete video service' }).click();
  await page.getByText('The key is deleted').waitFor();
  const refused = await fetch(`${url}/v1/deliveries`, { headers: { authorization: `Bearer ${secret}` } });
  assert.equal(refused.status, 401);
});

journey('thresholds of alerts are set, and an empty one is off', async (visit) => {
  const page = await visit.open('/alerts');
  await page.getByLabel('Waiting deliveries of a destination').fill('5000');
  await page.getByLabel('Dead letters since').fill('');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByText('The thresholds are saved').waitFor();
  const { backlog_depth, dead_letters } = await api('GET', '/v1/alerts');
  assert.deepEqual({ backlog_depth, dead_letters }, { backlog_depth: 5000, dead_letters: null });
});

journey('a change is in the activity with what it was before', async (visit) => {
  const { id } = await api('POST', '/v1/destinations', {
    url: 'https://example.com/hooks', name: 'Acme', rate_limits: [{ limit: 10, period: 'second' }],
  });
  await api('PATCH', `/v1/destinations/${id}`, { rate_limits: [{ limit: 25, period: 'second' }] });
  const page = await visit.open(`/activity?destination=${id}`);
  const row = page.getByRole('row').filter({ hasText: 'destination edited' });
  await row.getByText('10/s').waitFor();
  await row.getByText('25/s').waitFor();
  await visit.check(page, 'activity');
});

journey('a new change appears without a reload, and what is unfolded stays so', async (visit) => {
  const { id } = await api('POST', '/v1/destinations', { url: 'https://example.com/unfolded', name: 'Unfolded' });
  const page = await visit.open(`/activity?destination=${id}`);
  const fields = page.locator('#activity details').first();
  await fields.locator('summary').click();
  await fields.getByText('https://example.com/unfolded').waitFor();
  await api('PATCH', `/v1/destinations/${id}`, { name: 'Folded' });
  await page.getByRole('row').filter({ hasText: 'destination edited' }).waitFor();
  assert.equal(await fields.evaluate((element) => element.open), true);
});

journey('times are in UTC or in the zone of the reader', async (visit) => {
  const page = await visit.open('/activity', { zone: 'Asia/Kolkata' });
  const time = page.locator('main time').first();
  const utc = await time.textContent();
  await page.keyboard.press('u');
  const local = await time.textContent();
  const minutes = (text) => Date.parse(`${text.replace(' ', 'T')}Z`) / 60_000;
  assert.equal(minutes(local) - minutes(utc), 330);
});

journey('the status shows the store, the queue and this process', async (visit) => {
  const page = await visit.open('/status');
  await page.getByText('API, scheduler and worker').waitFor();
  await page.getByText('SQLite').waitFor();
  await visit.check(page, 'status');
});

journey('the keyboard leads to every part', async (visit) => {
  const page = await visit.open('/');
  for (const [second, path] of [['d', '/deliveries'], ['x', '/dead-letters'], ['e', '/events'], ['s', '/status']]) {
    await page.keyboard.press('g');
    await page.keyboard.press(second);
    await page.waitForURL(`**${path}`);
  }
  await page.keyboard.press('?');
  await page.getByRole('dialog', { name: 'Keyboard' }).waitFor();
  await page.keyboard.press('Escape');
  await page.keyboard.press('/');
  await page.keyboard.type('acme');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Acme' }).waitFor();
});
