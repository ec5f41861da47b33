package org.apache.apisix.plugin.runner.filter;

import java.util.List;
import org.apache.apisix.plugin.runner.HttpRequest;
import org.apache.apisix.plugin.runner.HttpResponse;
import org.springframework.stereotype.Component;

/** Changes path, arguments and fields of the request, from its body and from a variable. */
@Component
public class Rewrite implements PluginFilter {
    @Override
    public String name() {
        return "rewrite";
    }

    @Override
    public void filter(HttpRequest request, HttpResponse response, PluginFilterChain chain) {
        request.setPath(request.getConfig(this));
        request.setArg("from", request.getPath());
        request.setHeader("x-method", request.getMethod().name());
        request.setHeader("x-body", request.getBody());
        request.setHeader("x-client", request.getVars("remote_addr"));
        request.setHeader("x-remove", null);
        chain.filter(request, response);
    }

    @Override
    public List<String> requiredVars() {
        return List.of("remote_addr");
    }

    @Override
    public Boolean requiredBody() {
        return true;
    }
}
