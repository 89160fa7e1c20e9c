module reader

go 1.23

require github.com/IBM/sarama v1.45.1
