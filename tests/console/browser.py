"""A headless Chromium that is driven as a person would: where none is to be had the tests are skipped, but never in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from console.world import PASSWORD, World
from patience import PATIENCE

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,900",
]

AXE = resources.files("axe_core_python").joinpath("axe.min.js")
RUN_AXE = """
const done = arguments[arguments.length - 1];
const rules = { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] };
const told = (found) => found.nodes.map((node) => `${found.id}: ${node.html.slice(0, 160)}`);
axe.run(document, rules).then(({ violations }) => done(violations.flatMap(told)), (error) => done([String(error)]));
"""


class Browser:
    """One browser with a profile of its own."""

    def __init__(self, driver: webdriver.Chrome, origin: str) -> None:
        self.driver, self.origin = driver, origin

    def open(self, path: str) -> None:
        self.driver.get(self.origin + path)

    def log_in(self, name: str, password: str = PASSWORD) -> None:
        self.open("/login")
        self.type("#name", name)
        self.type("#password", password)
        self.press("button.go")

    def one(self, selector: str) -> WebElement:
        found = self.until(lambda: next(iter(self.all(selector)), None), f"there is no `{selector}`")
        assert isinstance(found, WebElement)
        return found

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "main") -> str:
        """What can be seen."""
        return str(self.one(selector).text)

    def type(self, selector: str, text: str) -> None:
        field = self.one(selector)
        field.clear()
        field.send_keys(text)

    def press(self, selector: str) -> None:
        self.until(lambda: self._pressed(selector), f"`{selector}` cannot be pressed")

    def _pressed(self, selector: str) -> bool:
        self.one(selector).click()
        return True

    def key(self, *keys: str) -> None:
        for key in keys:
            webdriver.ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    def script(self, text: str, *values: Any) -> Any:
        return self.driver.execute_script(text, *values)

    def until(self, holds: Callable[[], Any], message: str = "", seconds: float = PATIENCE) -> Any:
        """Wait until something holds; elements that are just being replaced are looked for again."""
        wait = WebDriverWait(self.driver, seconds, 0.05, [Exception])
        return wait.until(lambda _: holds(), message)

    def sees(self, text: str, selector: str = "main") -> None:
        self.until(lambda: text in self.text(selector), f"`{text}` is not to be seen")

    def size(self, width: int, theme: str = "light") -> None:
        """The width of the page in px, and the colours that the system asks for."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def barriers(self) -> list[str]:
        """What axe-core finds that keeps somebody from using the page, by the rules of WCAG 2.1 AA and by good practice."""
        self.driver.execute_script(AXE.read_text())
        found = self.driver.execute_async_script(RUN_AXE)
        assert isinstance(found, list)
        return found

    def complaints(self) -> list[str]:
        """What the browser's console says that is worse than information: a breach of the page's policy, an error.

        That a form was answered with a 400 page is told there too, and is none.
        """
        found = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        told = [entry["message"] for entry in found if entry["level"] in ("SEVERE", "WARNING")]
        return [message for message in told if "status of 400 (Bad Request)" not in message]


def chromium() -> tuple[str, str]:
    """The browser and its driver; without them the test is skipped, but never in CI."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is not None and driver is not None:
        return binary, driver
    message = "no chromium or no chromedriver: scripts/browser installs them where it may"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def browser(made: World, folder: Path) -> Iterator[Browser]:
    binary, driver_binary = chromium()
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_binary))
    try:
        driver.set_page_load_timeout(PATIENCE)
        yield Browser(driver, made.origin)
    finally:
        driver.quit()
        shutil.rmtree(folder, ignore_errors=True)
