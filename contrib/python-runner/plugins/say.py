"""Responds to the client with the text of its configuration: {"body": "hello"}."""

import json

from apisix.runner.plugin.core import PluginBase


class Say(PluginBase):
    def name(self):
        return "say"

    def config(self, conf):
        return json.loads(conf)["body"]

    def filter(self, conf, request, response):
        response.set_status_code(200)
        response.set_header("X-Runner", "Python")
        response.set_body(conf)
