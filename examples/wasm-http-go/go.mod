module example/handler

go 1.24
