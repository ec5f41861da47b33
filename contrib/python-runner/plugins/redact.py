"""Hides words in responses of nodes: {"words": ["secret"]}."""

import json

from apisix.runner.plugin.core import PluginBase


class Redact(PluginBase):
    def name(self):
        return "redact"

    def config(self, conf):
        return [word.encode() for word in json.loads(conf)["words"]]

    def response_filter(self, conf, response):
        body = old = response.get_body_bytes()
        for word in conf:
            body = body.replace(word, b"*" * len(word))
        if body != old:
            # A new body has the fields that are set here.
            response.set_header("X-Redacted", "1")
            response.set_body(body)
