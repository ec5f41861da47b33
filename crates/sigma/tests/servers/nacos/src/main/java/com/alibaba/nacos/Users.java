package com.alibaba.nacos;

import com.alibaba.nacos.plugin.auth.api.IdentityContext;
import com.alibaba.nacos.plugin.auth.api.Permission;
import com.alibaba.nacos.plugin.auth.api.Resource;
import com.alibaba.nacos.plugin.auth.constant.ActionTypes;
import com.alibaba.nacos.plugin.auth.exception.AccessException;
import com.alibaba.nacos.plugin.auth.spi.server.AuthPluginService;
import java.util.Collection;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.springframework.http.HttpStatus;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.server.ResponseStatusException;

/**
 * The one user, for a server with {@code nacos.core.auth.enabled=true} and
 * {@code nacos.core.auth.system.type=test}: the module that Nacos has for users is in no registry of
 * packages. What the server asks of it, by HTTP and by gRPC, is Nacos' own.
 */
@RestController
public class Users implements AuthPluginService {
  /** Of all instances: the server makes one, and Spring another. */
  private static final Set<String> TOKENS = ConcurrentHashMap.newKeySet();

  @PostMapping("/v1/auth/login")
  public Map<String, Object> login(@RequestParam String username, @RequestParam String password) {
    if (!username.equals("nacos") || !password.equals("p&w")) {
      throw new ResponseStatusException(HttpStatus.FORBIDDEN, "unknown user!");
    }
    String token = UUID.randomUUID().toString();
    TOKENS.add(token);
    return Map.of("accessToken", token, "tokenTtl", 18000, "globalAdmin", false, "username", username);
  }

  @Override
  public Collection<String> identityNames() {
    return Set.of("accessToken");
  }

  @Override
  public boolean enableAuth(ActionTypes action, String type) {
    return true;
  }

  @Override
  public boolean validateIdentity(IdentityContext context, Resource resource) throws AccessException {
    Object token = context.getParameter("accessToken");
    if (token == null || !TOKENS.contains(token.toString())) {
      throw new AccessException("token invalid!");
    }
    return true;
  }

  @Override
  public Boolean validateAuthority(IdentityContext context, Permission permission) {
    return true;
  }

  @Override
  public String getAuthServiceName() {
    return "test";
  }
}
