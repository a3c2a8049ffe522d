// Chats on a page in a real browser (BROWSER): prints what it showed as JSON. PAGE is the page's address, with its query.
import { chromium } from "playwright-core";

const browser = await chromium.launch({ executablePath: process.env.BROWSER, args: ["--disable-gpu"] });
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(120_000);
  const faults = [];
  page.on("pageerror", (error) => faults.push(String(error)));
  await page.goto(process.env.PAGE);
  const texts = (name) => page.locator(`p.${name}`).allTextContents();
  const told = { faults, answers: [], errors: [], state: "" };
  if (process.env.IS_REFUSED) {
    await page.evaluate(() => new Promise((resolve) => socket.readyState === 3 ? resolve() : socket.addEventListener("close", resolve)));
  } else {
    await page.locator("#send:enabled").waitFor();
    for (const text of process.env.SAY.split("|")) {
      await page.fill("#text", text);
      await page.click("#send");
      await page.locator("#stop:disabled").waitFor();
    }
  }
  told.answers = await texts("assistant");
  told.errors = await texts("error");
  told.state = await page.locator("#state").textContent();
  console.log(JSON.stringify(told));
} finally {
  await browser.close();
}
