package org.apache.apisix.plugin.runner.filter;

import org.apache.apisix.plugin.runner.PostRequest;
import org.apache.apisix.plugin.runner.PostResponse;
import org.springframework.stereotype.Component;

/** Changes the body of the node's response. */
@Component
public class Capitals implements PluginFilter {
    @Override
    public String name() {
        return "capitals";
    }

    @Override
    public void postFilter(PostRequest request, PostResponse response, PluginFilterChain chain) {
        response.setHeader("x-runner", request.getConfig(this));
        response.setBody(request.getBody().toUpperCase());
        chain.postFilter(request, response);
    }

    @Override
    public Boolean requiredRespBody() {
        return true;
    }
}
