package com.alibaba.nacos;

import com.alibaba.nacos.core.code.ControllerMethodsCache;
import javax.annotation.PostConstruct;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.web.servlet.ServletComponentScan;
import org.springframework.scheduling.annotation.EnableScheduling;

@SpringBootApplication
@EnableScheduling
@ServletComponentScan
public class Server {
  @Autowired private ControllerMethodsCache methods;

  public static void main(String[] arguments) {
    SpringApplication.run(Server.class, arguments);
  }

  /** Without it every call is answered 501. */
  @PostConstruct
  public void init() {
    methods.initClassMethod("com.alibaba.nacos.core.controller");
    methods.initClassMethod("com.alibaba.nacos.naming.controllers");
    methods.initClassMethod("com.alibaba.nacos.config.server.controller");
  }
}
