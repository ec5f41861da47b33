package org.apache.apisix.plugin.runner.filter;

import org.apache.apisix.plugin.runner.HttpRequest;
import org.apache.apisix.plugin.runner.HttpResponse;
import org.springframework.stereotype.Component;

/** Responds with the text of its configuration. */
@Component
public class Say implements PluginFilter {
    @Override
    public String name() {
        return "say";
    }

    @Override
    public void filter(HttpRequest request, HttpResponse response, PluginFilterChain chain) {
        response.setStatusCode(201);
        response.setHeader("x-runner", "Java");
        response.setBody(request.getConfig(this));
        chain.filter(request, response);
    }
}
