"""The web page that the gateway serves: files for a browser, and the routes they are at."""
