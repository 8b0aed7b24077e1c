// A page of the server in a browser, whose errors and requests are recorded.
//
// CHROMIUM names the browser, and PLAYGROUND_MODULES a folder with node_modules.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const require = createRequire(process.env.PLAYGROUND_MODULES ? `${process.env.PLAYGROUND_MODULES}/` : import.meta.url);
export const { chromium } = require('playwright-core');
export const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

/** Opens a URL. Messages of the console with the text `expected` are no problems. */
export async function openPage(browser, url, { expected = null, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, acceptDownloads: true, ...options });
  await context.addInitScript(() => {
    window.violations = [];
    addEventListener('securitypolicyviolation', (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
  });
  const page = await context.newPage();
  page.problems = [];
  page.outside = [];
  page.urls = [];
  page.on('console', (message) => {
    const isExpected = expected !== null && message.text().includes(expected);
    if (message.type() === 'error' && !isExpected) page.problems.push(message.text());
  });
  page.on('pageerror', (error) => page.problems.push(error.stack));
  page.on('dialog', (dialog) => { page.problems.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  context.on('request', (request) => {
    page.urls.push(request.url());
    if (!/^(data|blob):/.test(request.url()) && new URL(request.url()).origin !== new URL(url).origin) page.outside.push(request.url());
  });
  await page.goto(url);
  return page;
}
