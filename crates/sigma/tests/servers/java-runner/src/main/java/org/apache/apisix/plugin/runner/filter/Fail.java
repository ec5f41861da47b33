package org.apache.apisix.plugin.runner.filter;

import org.apache.apisix.plugin.runner.HttpRequest;
import org.apache.apisix.plugin.runner.HttpResponse;
import org.springframework.stereotype.Component;

/** Raises an exception. */
@Component
public class Fail implements PluginFilter {
    @Override
    public String name() {
        return "fail";
    }

    @Override
    public void filter(HttpRequest request, HttpResponse response, PluginFilterChain chain) {
        throw new IllegalStateException("this filter fails");
    }
}
