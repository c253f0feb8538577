"""The browser, and exposures whose pages it opens."""
