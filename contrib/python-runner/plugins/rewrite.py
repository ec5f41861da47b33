"""Changes the request: {"path": "/new", "headers": {"x-user": "jack"}, "args": {"a": "1"}, "body": "new"}."""

import json

from apisix.runner.plugin.core import PluginBase


class Rewrite(PluginBase):
    def name(self):
        return "rewrite"

    def config(self, conf):
        return json.loads(conf)

    def filter(self, conf, request, response):
        if "path" in conf:
            request.set_uri(conf["path"])
        request.set_headers(conf.get("headers", {}))
        request.set_args(conf.get("args", {}))
        if "body" in conf:
            request.set_body(conf["body"] + request.get_body())
        request.set_header("x-client", request.get_remote_addr())
        request.set_header("x-route", request.get_var("route_id") or "")
        request.set_resp_header("X-Runner", "Python")
