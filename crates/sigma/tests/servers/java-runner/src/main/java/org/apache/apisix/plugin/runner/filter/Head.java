package org.apache.apisix.plugin.runner.filter;

import org.apache.apisix.plugin.runner.PostRequest;
import org.apache.apisix.plugin.runner.PostResponse;
import org.springframework.stereotype.Component;

/** Changes status and fields of the node's response. */
@Component
public class Head implements PluginFilter {
    @Override
    public String name() {
        return "head";
    }

    @Override
    public void postFilter(PostRequest request, PostResponse response, PluginFilterChain chain) {
        response.setStatusCode(request.getUpstreamStatusCode() + 2);
        response.setHeader("x-node-type", request.getUpstreamHeaders().get("content-type"));
        chain.postFilter(request, response);
    }
}
