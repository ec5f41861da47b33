// Refuses requests with x-deny, and greets with its configuration.
export * from "@solo-io/proxy-runtime/proxy";
import {
  Context, FilterHeadersStatusValues, GrpcStatusValues, RootContext, registerRootContext, send_local_response,
  stream_context,
} from "@solo-io/proxy-runtime";

class Root extends RootContext {
  createContext(id: u32): Context {
    return new Filter(id, this);
  }
}

class Filter extends Context {
  constructor(id: u32, root: Root) {
    super(id, root);
  }

  onRequestHeaders(fields: u32, end: bool): FilterHeadersStatusValues {
    if (stream_context.headers.request.get("x-deny") != "") {
      send_local_response(403, "asked", String.UTF8.encode("denied\n"), [], GrpcStatusValues.Ok);
      return FilterHeadersStatusValues.StopIteration;
    }
    stream_context.headers.request.add("x-filter", "assembly");
    return FilterHeadersStatusValues.Continue;
  }

  onResponseHeaders(fields: u32, end: bool): FilterHeadersStatusValues {
    stream_context.headers.response.add("x-greeting", this.root_context.getConfiguration());
    return FilterHeadersStatusValues.Continue;
  }
}

registerRootContext((id: u32) => new Root(id), "filter");
