// Times in UTC and in the zone of the reader: on every page, on the axes of charts, and after live updates.

import assert from 'node:assert/strict';

import { api, journey, post, ready } from './browser.mjs';
import { receive } from './receiver.mjs';

/** It has no summer time, and its minutes are not those of UTC. */
const ZONE = 'Australia/Eucla';
const EAST_OF_UTC_MS = (8 * 60 + 45) * 60_000;

const receiver = await receive();
const { id } = await api('POST', '/v1/destinations', {
  url: receiver.url('/zones'), name: 'zones', event_types: ['zones.*'], rate_limits: [{ limit: 10, period: 'second' }],
});
await post('zones.made', 20);
await receiver.wait('/zones', 20);

/**
 * Awaits that every time in `region` is shown as it is so far east of UTC. Ages and countdowns have no zone. The axes of a chart
 * show minutes or seconds, and one of their labels shows the day and the zone.
 */
async function allShown(page, region, zone) {
  await page.waitForFunction(([selector, east, name]) => {
    const wall = (at) => new Date(at + east).toISOString();
    const isRight = (text, form, at) => form === 'zone'
      ? text.startsWith(wall(at).slice(0, 10)) && text.endsWith(` ${name}`)
      : text.includes(wall(at).slice(11, 16));
    const root = document.querySelector(selector);
    const counting = ['countdown', 'left', 'age', 'ago'];
    const times = [...root.querySelectorAll('time[datetime]')].filter((time) => !counting.includes(time.dataset.form));
    const labels = [...root.querySelectorAll('svg text[data-at]')];
    return times.length + labels.length > 0
      && times.every((time) => isRight(time.textContent, time.dataset.form, Date.parse(time.dateTime)))
      && labels.every((label) => isRight(label.textContent, label.dataset.form, Number(label.dataset.at)));
  }, [region, zone === 'UTC' ? 0 : EAST_OF_UTC_MS, zone]);
}

journey('the axes of charts turn with the times, and a redrawn chart stays as it was turned', async (visit) => {
  const page = await visit.open(`/destinations/${id}`, { zone: ZONE });
  await page.locator('#recent svg text[data-at]').first().waitFor({ state: 'attached' });
  assert.ok(await page.locator('#recent svg text[data-form=zone]').count() > 0, 'an axis names its zone');
  await allShown(page, 'main', 'UTC');
  const button = page.locator('#zone');
  assert.equal(await button.textContent(), 'UTC');
  await button.click();
  await allShown(page, 'main', ZONE);
  assert.equal(await button.textContent(), 'Local time');
  assert.equal(await button.getAttribute('title'), `Times are in ${ZONE}`);

  // An edit redraws the chart, with a marker.
  await api('PATCH', `/v1/destinations/${id}`, { rate_limits: [{ limit: 20, period: 'second' }] });
  await page.locator('#recent svg text', { hasText: '20/s' }).first().waitFor({ state: 'attached' });
  await allShown(page, '#recent', ZONE);
  await allShown(page, '#now', ZONE);
  await visit.check(page, 'local-time');
  await button.click();
  await allShown(page, 'main', 'UTC');
});

journey('the choice holds on other pages, and what is copied stays ISO in UTC', async (visit) => {
  const page = await visit.open('/', { zone: ZONE });
  await ready(page);
  await page.keyboard.press('u');
  await allShown(page, 'main', ZONE);
  for (const path of [`/destinations/${id}/proof`, '/deliveries', '/events', '/activity', '/status']) {
    await page.goto(path);
    await ready(page);
    await allShown(page, 'main', ZONE);
    const tooltips = await page.locator('main time').evaluateAll((times) => times.map((time) => time.title));
    const isIso = (title) => /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/.test(title);
    assert.ok(tooltips.every(isIso), `${path}: ${tooltips}`);
  }
});

journey('paused live updates leave the page as it is, while the times still turn', async (visit) => {
  const page = await visit.open(`/destinations/${id}`, { zone: ZONE });
  await ready(page);
  const asOf = page.locator('#now .asof time');
  const shown = () => asOf.getAttribute('datetime');
  const before = await shown();
  await page.waitForFunction((at) => document.querySelector('#now .asof time').dateTime !== at, before);
  await page.keyboard.press('p');
  await page.getByRole('button', { name: 'Paused' }).waitFor();
  const paused = await shown();
  await page.keyboard.press('u');
  await allShown(page, '#now', ZONE);
  // Another viewer gets two snapshots and an edit meanwhile.
  const other = await visit.open(`/destinations/${id}`);
  await api('PATCH', `/v1/destinations/${id}`, { paused: true });
  await other.locator('#now').getByText('Paused.').waitFor();
  await other.waitForResponse(/\/fragments\/destinations\/.*\/now/);
  await other.waitForResponse(/\/fragments\/destinations\/.*\/now/);
  assert.equal(await shown(), paused);
  assert.equal(await page.locator('#now').getByText('Its deliveries wait.').count(), 0);
  await page.keyboard.press('p');
  await page.locator('#now').getByText('Its deliveries wait.').waitFor();
  await allShown(page, '#now', ZONE);
});
