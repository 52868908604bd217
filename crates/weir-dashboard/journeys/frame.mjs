// The frame of the journeys itself: whatever a page does wrong fails the journey that has opened it.

import assert from 'node:assert/strict';

import { journey } from './browser.mjs';

/** Does something wrong in the page, awaits the event that reports it, and returns what the frame found. */
async function found(visit, page, event, isReport, wrong) {
  const reported = page.waitForEvent(event, isReport);
  await page.evaluate(wrong);
  await reported;
  // After a round trip, everything that the browser reported before is here too.
  await page.evaluate(() => null);
  return visit.takeFindings();
}

journey('an error on the console or in a script is found', async (visit) => {
  const page = await visit.open('/');
  const isOurs = (message) => message.text() === 'wrong';
  const [logged, ...others] = await found(visit, page, 'console', isOurs, () => console.error('wrong'));
  assert.match(logged, /^console: wrong /);
  assert.deepEqual(others, []);
  const thrown = await found(visit, page, 'pageerror', () => true, () => {
    setTimeout(() => { throw new Error('thrown'); });
  });
  assert.match(thrown.join(), /script: .*thrown/);
});

journey('a violation of the content security policy is found, and nothing foreign runs', async (visit) => {
  const page = await visit.open('/');
  const isReport = (message) => message.text().startsWith('CSP: ');
  const violations = await found(visit, page, 'console', isReport, () => {
    const script = document.createElement('script');
    script.textContent = 'globalThis.isForeign = true';
    document.head.append(script);
  });
  assert.match(violations.join(), /CSP: script-src-elem inline/);
  assert.equal(await page.evaluate(() => globalThis.isForeign), undefined);
});

journey('a failed request is found, unless it was announced', async (visit) => {
  const page = await visit.open('/');
  const isOurs = (response) => response.url().endsWith('/v1/nothing');
  const ask = () => void fetch('/v1/nothing');
  const [failed, ...others] = await found(visit, page, 'response', isOurs, ask);
  assert.match(failed, /^GET .*\/v1\/nothing: 404$/);
  assert.deepEqual(others, []);
  visit.expect(404, /\/v1\/nothing$/);
  assert.deepEqual(await found(visit, page, 'response', isOurs, ask), []);
});

journey('a page that is not accessible or too wide is found', async (visit) => {
  const page = await visit.open('/', { width: 360 });
  await visit.check(page, 'right');
  await page.evaluate(() => {
    const image = Object.assign(new Image(20, 20), { src: 'data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=' });
    document.querySelector('main').append(image);
  });
  const isOfImage = ({ actual }) => actual.some((violation) => violation.startsWith('image-alt'));
  await assert.rejects(visit.check(page, 'wrong'), isOfImage);
  await page.evaluate(() => { document.querySelector('main').style.width = '3000px'; });
  await assert.rejects(visit.assertFits(page, 'wide'), /wide is \d+ px wide in a window of 360 px/);
});
