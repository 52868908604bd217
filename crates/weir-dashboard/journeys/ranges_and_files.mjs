// The picker of ranges, in the zone of the page; durations in forms; lists as files.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';

import { api, journey, ready } from './browser.mjs';

/** It has no summer time, and its minutes are not those of UTC. */
const ZONE = 'Australia/Eucla';
const EAST_OF_UTC_MS = (8 * 60 + 45) * 60_000;

const { id } = await api('POST', '/v1/destinations', { url: 'https://example.com/hooks', name: '=Formula', tenant: 'files' });
await api('PATCH', `/v1/destinations/${id}`, { retry: { max_age_s: 3_600 } });

const utc = (page) => new URL(page.url()).searchParams.get('from');

journey('a range is picked by its name or by dates in the zone of the page', async (visit) => {
  const page = await visit.open(`/destinations/${id}/activity`, { zone: ZONE });
  await ready(page);
  await page.getByLabel('Time').selectOption('24 h');
  await page.getByRole('button', { name: 'Show', exact: true }).click();
  await page.waitForURL(/from=/);
  const begin = Date.parse(utc(page));
  assert.ok(Math.abs(Date.now() - 86_400_000 - begin) < 60_000, utc(page));
  assert.equal(await page.getByLabel('Time').inputValue(), '24 h');

  const from = page.getByLabel(/^From/);
  const shown = async () => Date.parse(`${await from.inputValue()}Z`);
  assert.ok(Math.abs(await shown() - begin) < 1_000);
  await page.locator('#zone').click();
  await page.getByText('local time').first().waitFor();
  assert.ok(Math.abs(await shown() - begin - EAST_OF_UTC_MS) < 1_000, 'the date is shown in the zone of the page');
  await visit.check(page, 'activity-of-a-destination');
  await from.fill('2026-01-02T03:04:05');
  await page.getByRole('button', { name: 'Show', exact: true }).click();
  await page.waitForURL(/2026-01-01/);
  assert.equal(utc(page), '2026-01-01T18:19:05', 'typed dates count before the range that was picked before');
  assert.equal(await from.inputValue(), '2026-01-02T03:04:05');
});

journey('without a script the picker is in UTC', async (visit) => {
  const page = await visit.open('/events', { scripts: false, zone: ZONE });
  await page.getByLabel('Time').selectOption('7 d');
  await page.getByRole('button', { name: 'Show', exact: true }).click();
  await page.getByText('From (UTC)').waitFor();
  assert.ok(Math.abs(Date.now() - 7 * 86_400_000 - Date.parse(utc(page))) < 60_000);
});

journey('a range that is too long for its buckets takes longer ones by itself', async (visit) => {
  const page = await visit.open(`/destinations/${id}/proof?step=10s`);
  await page.getByLabel('Time').selectOption('30 d');
  await page.getByRole('button', { name: 'Show', exact: true }).click();
  await page.getByText('they are 1h long').waitFor();
  await page.locator('svg.weir-chart').first().waitFor();
  await visit.check(page, 'proof-of-30-days');
});

journey('durations are read and shown as people write them', async (visit) => {
  const page = await visit.open(`/destinations/${id}/settings`);
  const age = page.getByLabel('Longest age');
  assert.equal(await age.inputValue(), '1 h');
  await age.fill('72 h');
  await page.getByLabel('Timeout of an attempt').fill('15');
  visit.expect(422, /\/settings$/);
  await page.getByRole('button', { name: 'Save settings' }).click();
  await page.getByText('Needs a unit, such as 500 ms, 15 s or 72 h.').waitFor();
  assert.equal(await age.inputValue(), '72 h');
  await visit.check(page, 'settings-refused');
  await page.getByLabel('Timeout of an attempt').fill('10 s');
  await page.getByRole('button', { name: 'Save settings' }).click();
  await page.getByText('Settings saved.').waitFor();
  const { timeout_ms, retry } = await api('GET', `/v1/destinations/${id}`);
  assert.deepEqual([timeout_ms, retry.max_age_s], [10_000, 259_200]);
  await page.getByRole('link', { name: 'Activity', exact: true }).last().click();
  const change = page.getByRole('row').filter({ hasText: 'Timeout of an attempt' });
  await change.getByText('10 s', { exact: true }).waitFor();
  await change.getByText('72 h', { exact: true }).waitFor();
  assert.match(page.url(), new RegExp(`/destinations/${id}/activity$`));
});

journey('a list is a file, with the rows of its filter and without formulas', async (visit) => {
  const page = await visit.open(`/activity?destination=${id}`);
  const downloaded = page.waitForEvent('download');
  await page.getByRole('link', { name: 'CSV' }).click();
  const file = await downloaded;
  assert.match(file.suggestedFilename(), /^weir-activity-\d{8}-\d{6}\.csv$/);
  const text = await readFile(await file.path(), 'utf8');
  assert.match(text, /^id,at,actor,/);
  assert.ok(text.includes(",\"'=Formula\","), text);
  assert.ok(!text.includes(',=Formula'));
  const { secret } = await api('POST', '/v1/keys', { name: 'other', role: 'read', tenants: ['others'] });
  const other = await visit.open('/activity', { as: secret });
  const answer = await other.request.get('/activity/export?format=jsonl');
  assert.equal(answer.status(), 200);
  assert.ok(!(await answer.text()).includes(id), 'a key sees only the rows of its tenants');
});
