"""The class of plugins."""

PLUGINS = {}


class PluginBase:
    """A plugin. A subclass is registered under its name when its module is imported."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        name = cls.name(cls)
        if name:
            PLUGINS[name] = cls

    def name(self):
        """Returns the name of the plugin in configurations."""
        return None

    def config(self, conf):
        """Parses a configuration, a text, once. Its result is the first argument of the filters. An exception refuses
        the configuration."""
        return conf

    def filter(self, conf, request, response):
        """Handles a request: changes `request`, or responds by setting something in `response`."""

    def response_filter(self, conf, response):
        """Handles the response of a node (`ext-plugin-post-resp`)."""
